"""The memory of validation: the reference holds one large weight at a time, and little of the small weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.validation.live_bytes import LiveBytes
from thunder_core.backend.claiming import deferred_tensor
from thunder_core.foundation.options.tolerance import Tolerance
from thunder_core.workflow.validation import validate, wide_weights
from thunder_core.workflow.validation.precision import reference_bytes

MIB = 1 << 20
ROWS = 4


def layers(count: int, width: int, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    """Linear layers in a sequence, with weights of the same size."""
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(count))).to(dtype).eval()


MODELS: dict[str, Callable[[], torch.nn.Module]] = {
    "large weights": lambda: layers(16, 1024),
    "small weights": lambda: layers(256, 256),
    "small weights in bfloat16": lambda: layers(256, 256, torch.bfloat16),
}


@pytest.mark.parametrize("name", MODELS)
def test_reference_holds_one_large_weight_and_few_small_weights_at_once(name, monkeypatch):
    monkeypatch.setattr(wide_weights, "WHOLE", 0)
    model = MODELS[name]()
    weights = list(model.parameters())
    inputs = {"input": torch.randn(ROWS, weights[0].shape[0], dtype=weights[0].dtype)}
    with LiveBytes() as live:
        report = validate(model, model, [inputs], Tolerance(), language_model=False)
    assert report.by_layer
    assert report.reference_dtype == "float64"
    largest = 8 * max(weight.numel() for weight in weights)
    assert live.peak < largest + deferred_tensor.SMALL + MIB, f"{live.peak / MIB:.1f} MiB"
    assert live.peak < sum(weight.numel() for weight in weights) * 8 / 2
    assert reference_bytes(model) == pytest.approx(live.peak, abs=MIB)
