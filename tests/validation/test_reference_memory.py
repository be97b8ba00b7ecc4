"""The memory of validation: the reference holds one large weight at a time, and little of the small weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.validation.live_bytes import LiveBytes
from thunder_core.backend.claiming import deferred_tensor
from thunder_core.foundation.options.tolerance import Tolerance
from thunder_core.workflow.validation import validate, wide_weights
from thunder_core.workflow.validation.comparison import ValidationSettings
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
    monkeypatch.setattr(wide_weights, "MAX_BYTES_AT_ONCE", 0)
    model = MODELS[name]()
    weights = list(model.parameters())
    inputs = {"input": torch.randn(ROWS, weights[0].shape[0], dtype=weights[0].dtype)}
    with LiveBytes(model) as live:
        report = validate(model, model, [inputs], Tolerance(), ValidationSettings(language_model=False))
    assert report.by_layer
    assert report.reference_dtype == "float64"
    largest = 8 * max(weight.numel() for weight in weights)
    assert live.peak < largest + deferred_tensor.SMALL_BYTES + MIB, f"{live.peak / MIB:.1f} MiB"
    assert live.peak < sum(weight.numel() for weight in weights) * 8 / 2
    assert reference_bytes(model) == pytest.approx(live.peak, abs=MIB)


class Buffers(torch.nn.Module):
    """Layers whose weights are buffers, and large buffers of integers."""

    def __init__(self, dtype: torch.dtype = torch.float32, *, writes: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.bias, self.writes = torch.nn.Parameter(torch.zeros(1024, dtype=dtype)), writes
        for number in range(8):
            self.register_buffer(f"weight{number}", (torch.randn(1024, 1024) / 32).to(dtype))
            self.register_buffer(f"order{number}", torch.randperm(1024).repeat(256))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the output of the last layer."""
        for number in range(8):
            weight, order = self.get_buffer(f"weight{number}"), self.get_buffer(f"order{number}")
            if self.writes:
                weight.add_(1e-3)
            x = (x @ weight + self.bias)[..., order[:1024]]
        return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_buffers_that_no_call_writes_to_have_one_copy(dtype):
    model = Buffers(dtype)
    size = sum(buffer.nbytes for buffer in model.buffers())
    inputs = [{"x": torch.randn(ROWS, 1024, dtype=dtype)} for _ in range(2)]
    with LiveBytes(model) as live:
        report = validate(model, model, inputs, Tolerance(), ValidationSettings(language_model=False))
    assert report.reference_dtype == "float64"
    assert report.notes == ()
    assert live.peak < size + 1024 * 1024 * 8 + MIB, f"{live.peak / size:.2f} times"


def test_buffers_that_a_call_writes_to_are_held_by_each_of_the_compared_models():
    model = Buffers(writes=True)
    size = sum(buffer.nbytes for buffer in model.buffers())
    written = sum(buffer.nbytes for buffer in model.buffers() if buffer.is_floating_point())
    with LiveBytes(model) as live:
        report = validate(
            model,
            model,
            [{"x": torch.randn(ROWS, 1024)}],
            Tolerance(),
            ValidationSettings(language_model=False, allow_non_finite=True),
        )
    assert sum(output.is_state for output in report.outputs) == 8
    # The state before, of eager and of the optimized model, twice as much in float64, and one conversion.
    assert live.peak < size + 5.5 * written + MIB, f"{live.peak / size:.2f} times"


class WritesInFloat64(torch.nn.Module):
    """A table that is written to in eager without another value, and in float64 with another value."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1024, 8)
        self.register_buffer("table", torch.linspace(0, 1, 8 << 20).view(-1, 1024))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the products with rows of the table."""
        self.table.add_(x.new_tensor(1e-12))
        return self.layer(x * self.table[3:7])


def test_reference_that_writes_to_a_deferred_buffer_runs_with_a_copy(monkeypatch):
    torch.manual_seed(0)
    model, inputs = WritesInFloat64(), [{"x": torch.randn(ROWS, 1024)}]
    model.table.clamp_(0.5)  # so that the sum rounds to the same value
    before = model.table.clone()
    deferred = validate(model, model, inputs, Tolerance(), ValidationSettings(language_model=False))
    assert torch.equal(model.table, before)
    monkeypatch.setattr(deferred_tensor, "MIN_DEFERRED", 1 << 40)
    monkeypatch.setattr(deferred_tensor, "SMALL_BYTES", 1 << 40)
    assert validate(model, model, inputs, Tolerance(), ValidationSettings(language_model=False)) == deferred
    assert (deferred.reference_dtype, deferred.notes) == ("float64", ())


@pytest.mark.parametrize("kind", ["the buffer", "a view of a buffer"])
def test_attribute_that_shares_memory_with_a_buffer_sees_its_writes(kind):
    class Shared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(4096, 1024))
            self.row = [self.cache[3]] if kind == "a view of a buffer" else self.cache

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.row[0].copy_(x)
            return self.cache.sum(0)

    model = Shared()
    report = validate(model, model, [{"x": torch.randn(1024)}], Tolerance(), ValidationSettings(language_model=False))
    assert report.passed
    assert model.cache.count_nonzero() == 0
