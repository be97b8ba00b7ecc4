"""The layer-by-layer reference computes the same as the reference that is converted as a whole."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from tests.families import inputs_for, sample
from thunder_core.backend.claiming import deferred_tensor
from thunder_core.backend.quantization.replacement import QuantizationSettings, quantized_model
from thunder_core.foundation.errors import OutOfTolerance
from thunder_core.passes.recipe import Tolerance
from thunder_core.workflow.validation import ValidationReport, comparison, precision, validate, wide_weights
from thunder_core.workflow.validation.comparison import ValidationSettings
from thunder_core.workflow.validation.streamed_gradients import stream_gradients

FAMILIES = ("llama", "gpt2", "bert", "t5", "mixtral")


class Odd(torch.nn.Module):
    """A recurrent layer, a tied weight that is read twice, an index into a weight, and a counter buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(16, 8)
        self.recurrent = torch.nn.LSTM(8, 8, batch_first=True)
        self.head = torch.nn.Linear(8, 16)
        self.head.weight = self.table.weight
        self.experts = torch.nn.Parameter(torch.randn(3, 8, 8))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        self.calls += 1
        rows, _ = self.recurrent(self.table(ids))
        chosen = self.experts[int(ids[0, 0]) % 3]
        return self.head(rows @ chosen + self.table.weight[ids].detach())


def reports(model: torch.nn.Module, inputs: object, monkeypatch: pytest.MonkeyPatch, **options: object) -> list:
    """The reports on a model that rounds its logits, with a whole reference and with a layer-by-layer reference."""

    def validated() -> ValidationReport:
        return validate(
            model,
            model,
            [inputs],
            Tolerance(times_eager=4.0),
            ValidationSettings(language_model=False, allow_non_finite=True, **options),
        )

    whole = validated()
    monkeypatch.setattr(wide_weights, "MAX_BYTES_AT_ONCE", 0)
    monkeypatch.setattr(deferred_tensor, "MIN_DEFERRED", 0)
    return [whole, validated()]


def require_equal(whole: ValidationReport, by_layer: ValidationReport) -> None:
    """Check that the reports are equal except for the type of reference."""
    assert (whole.by_layer, by_layer.by_layer) == (False, True)
    assert by_layer.reference_in_words == f"{whole.reference_dtype}, one layer at a time"
    assert by_layer.model_copy(update={"by_layer": False}) == whole


@pytest.mark.parametrize("family", FAMILIES)
def test_reference_by_layer_measures_the_errors_of_the_whole_reference(family, monkeypatch):
    loaded = sample(family)
    require_equal(*reports(loaded.model, inputs_for(loaded), monkeypatch))


def test_reference_by_layer_of_bfloat16_equals_the_whole_reference(monkeypatch):
    loaded = sample("llama", "bfloat16")
    require_equal(*reports(loaded.model, inputs_for(loaded), monkeypatch))


def test_reference_by_layer_of_tied_recurrent_and_indexed_weights_equals_the_whole_reference(monkeypatch):
    torch.manual_seed(0)
    require_equal(*reports(Odd().eval(), {"ids": torch.arange(12).view(2, 6)}, monkeypatch))


@pytest.mark.parametrize("scheme", ["int8-weight-only", "int4-weight-only", "int8-dynamic", "bf16", "fp8"])
def test_reference_by_layer_of_quantized_layers_equals_the_whole_reference(scheme, monkeypatch):
    loaded = sample("llama")
    model = quantized_model(loaded.model, QuantizationSettings(scheme))
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    require_equal(*reports(model, inputs_for(loaded), monkeypatch))
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name])
        assert buffer.dtype == before[name].dtype


@pytest.mark.parametrize("family", ["llama", "gpt2", "t5"])
def test_gradients_by_layer_match_the_whole_reference(family, monkeypatch):
    loaded = sample(family)
    require_equal(*reports(loaded.model, inputs_for(loaded, labels=True), monkeypatch, train=True))


class Recomputed(torch.nn.Module):
    """A weight in two checkpointed parts, so that its gradient is accumulated in two parts, and a frozen weight."""

    def __init__(self, *, use_reentrant: bool) -> None:
        super().__init__()
        self.layer, self.frozen = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8).requires_grad_(False)
        self.start = torch.nn.Parameter(torch.zeros(8))
        self.use_reentrant = use_reentrant

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss."""
        x = x + self.start
        for _ in range(2):
            x = checkpoint(lambda x: torch.tanh(self.frozen(self.layer(x))), x, use_reentrant=self.use_reentrant)
        return {"loss": x.square().mean()}


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_gradient_that_is_accumulated_in_parts_is_compared_whole(use_reentrant, monkeypatch):
    torch.manual_seed(0)
    model = Recomputed(use_reentrant=use_reentrant)
    require_equal(*reports(model, {"x": torch.randn(4, 8)}, monkeypatch, train=True))


def test_wrong_gradient_is_refused_where_the_reference_is_held_by_layer(monkeypatch):
    torch.manual_seed(0)
    model, wrong = Recomputed(use_reentrant=False), Recomputed(use_reentrant=False)
    wrong.layer, wrong.frozen, wrong.start = model.layer, model.frozen, model.start
    monkeypatch.setattr(wide_weights, "MAX_BYTES_AT_ONCE", 0)

    def optimized(x: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = wrong(x)["loss"]
        return {"loss": loss.detach() + (loss - loss.detach()) * 1.01}

    with pytest.raises(OutOfTolerance, match=r"layer\.bias\.grad"):
        validate(
            optimized,
            model,
            [{"x": torch.randn(4, 8)}],
            Tolerance(),
            ValidationSettings(language_model=False, train=True),
        )


def test_gradients_that_are_taken_are_dropped_one_by_one():
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
    counts: dict[str, int] = {}

    def take(name: str, gradient: torch.Tensor) -> bool:
        counts[name] = sum(parameter.grad is not None for parameter in model.parameters())
        return True

    with stream_gradients(model, take):
        model(torch.ones(2, 4)).sum().backward()
    assert counts == {f"{name}.grad": 1 for name, _ in model.named_parameters()}


def test_large_model_is_referenced_in_float64_with_memory_for_one_layer(monkeypatch):
    model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(40)))  # 160 MiB, and 320 in float64
    weight = 1024 * 1024 * torch.float64.itemsize
    monkeypatch.setattr(precision, "free_memory", lambda device: 6 * weight)
    assert precision.widest_affordable(model) == torch.float64
    assert precision.widest_affordable(model, train=True) == torch.float64  # its gradients exist one at a time
    monkeypatch.setattr(precision, "free_memory", lambda device: 2 * weight)
    assert precision.widest_affordable(model) == torch.float64
    assert precision.widest_affordable(model, train=True) == torch.float32
    reference = precision.Reference(model, torch.float64)
    assert reference.by_layer
    assert all(
        type(parameter) is deferred_tensor.DeferredTensor for parameter in reference._weights if parameter.ndim > 1
    )


class Clock:
    """A clock that advances by a second at each reading."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Advance by a second."""
        self.now += 1.0
        return self.now


def test_inputs_beyond_the_time_limit_are_left_out_and_noted(monkeypatch):
    model = torch.nn.Linear(4, 4)
    inputs = [{"input": torch.randn(2, 4)} for _ in range(5)]

    def validated(seconds: float) -> ValidationReport:
        monkeypatch.setattr("thunder_core.workflow.validation.budget.time.perf_counter", Clock())
        return validate(model, model, inputs, Tolerance(), ValidationSettings(language_model=False, seconds=seconds))

    assert validated(1000.0).inputs == 5
    assert validated(0.0).inputs == 1
    report = validated(18.0)
    assert 1 < report.inputs < 5
    assert report.notes[0].startswith(f"{5 - report.inputs} of 5 inputs were left out: the validation may take 18 s")
    assert report.passed


def test_time_of_validation_follows_from_calls_of_eager(monkeypatch):
    budget = comparison.Budget(inputs=3)
    assert budget.seconds_allowed == 30.0
    budget.eager_call = 4.0
    assert budget.seconds_allowed == 60.0
