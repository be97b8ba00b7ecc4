"""The state after a call equals eager's as well: buffers, attributes and inputs that the call changes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import thunder_core
from thunder_core.backend.quantization.replacement import QuantizationSettings, quantized_model
from thunder_core.foundation.errors import NotComparable, OutOfTolerance
from thunder_core.passes.recipe import Tolerance
from thunder_core.workflow.validation import ValidationReport, validate
from thunder_core.workflow.validation.comparison import ValidationSettings
from thunder_core.workflow.validation.leaves import Leaves
from thunder_core.workflow.validation.state import changed_paths, state_of


class Stateful(torch.nn.Module):
    """A norm in train mode, a cache in a buffer, a counter attribute, and an attribute with the last result."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)
        self.register_buffer("cache", torch.full((8, 4), float("nan")), persistent=False)
        self.register_buffer("unused", torch.full((2,), float("-inf")))
        self.calls, self.last, self.log = 0, None, []

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the loss and its values; write rows of the cache, both attributes and the input."""
        y = self.norm(x.clone())
        self.cache[: len(x)] = y.detach()
        self.calls += 1
        self.last = y.detach() * 2
        self.log.append(x.mean().detach())
        x.zero_()
        return {"loss": y.pow(3).sum(), "y": y}


def check(optimized: Callable[..., object], model: torch.nn.Module, *, train: bool = False) -> ValidationReport:
    """Validate on two inputs of different lengths."""
    inputs = [{"x": torch.randn(6 + n, 4, generator=torch.Generator().manual_seed(n))} for n in range(2)]
    return validate(
        optimized, model, inputs, Tolerance(floor=4e-6), ValidationSettings(language_model=False, train=train)
    )


@pytest.fixture
def model() -> Stateful:
    """The model in train mode."""
    torch.manual_seed(0)
    return Stateful().train()


CHANGED = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "cache", "last", "log.0", "input x"}


@pytest.mark.parametrize("train", [False, True])
def test_each_state_that_a_call_changes_is_compared_separately(model: Stateful, train: bool) -> None:
    report = check(model, model, train=train)
    states = {output.name.removesuffix(" after the call"): output for output in report.outputs if output.is_state}
    assert states.keys() == CHANGED | {"log.1"}  # at the second input the attribute of the first call exists already
    assert 0 < states["norm.running_var"].eager.maximum < 1e-6
    assert states["norm.running_mean"].dtype == "float32"
    assert states["cache"].finite  # elements that no call has written are NaN in both models, and are ignored
    assert states["cache"].elements == (6 + 7) * 4
    assert report.notes == ()


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("path", ["norm.running_mean", "norm.num_batches_tracked", "cache", "last", "calls"])
def test_a_write_that_is_dropped_is_found(model: Stateful, path: str, train: bool) -> None:
    owner, _, name = path.rpartition(".")

    def optimized(x: torch.Tensor) -> object:
        value = getattr(model.get_submodule(owner), name)
        before = value.clone() if isinstance(value, torch.Tensor) else value
        returned = model(x)
        setattr(model.get_submodule(owner), name, before)
        return returned

    with pytest.raises((OutOfTolerance, NotComparable), match=f"`{path} after the call`"):
        check(optimized, model, train=train)


def test_an_unchanged_input_that_eager_changes_is_found(model: Stateful) -> None:
    with pytest.raises(OutOfTolerance, match="`input x after the call`"):
        check(lambda x: model(x.clone()), model)


class Scaled(torch.nn.Module):
    """A product with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product."""
        return x * self.scale


def test_a_write_that_eager_does_not_make_is_found() -> None:
    scaled = Scaled()

    def optimized(x: torch.Tensor) -> torch.Tensor:
        returned = scaled(x)
        scaled.scale += 1
        return returned

    assert [output.name for output in check(scaled, scaled).outputs] == ["output"]
    with pytest.raises(OutOfTolerance, match="`scale after the call`"):
        check(optimized, scaled)
    assert scaled.scale == 1


def test_a_compiled_model_leaves_eagers_state(model: Stateful) -> None:
    compiled = thunder_core.jit(model)
    assert {output.name.removesuffix(" after the call") for output in check(compiled, model).outputs} >= CHANGED
    assert check(compiled, model, train=True).passed


class WritesParameters(torch.nn.Module):
    """A model that updates its weight at each call."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the product with a weight that grows."""
        with torch.no_grad():
            self.weight += 1
        return x * self.weight


def test_a_call_that_writes_to_parameters_is_not_comparable() -> None:
    model = WritesParameters()
    with pytest.raises(NotComparable, match="writes to its parameter `weight`"):
        check(model, model)


@pytest.mark.parametrize("after", [torch.ones(0, 4), torch.ones(0, dtype=torch.int64), torch.ones(0)])
def test_an_empty_tensor_is_changed_by_its_shape_and_dtype(after: torch.Tensor) -> None:
    before = torch.ones(0)
    is_changed = (before.shape, before.dtype) != (after.shape, after.dtype)
    found = changed_paths(Leaves(tensors={"cache": before}), Leaves(tensors={"cache": after}))
    assert list(found) == ["cache"] * is_changed


def test_codes_of_quantized_layers_are_no_state():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.BatchNorm1d(64))
    quantized = quantized_model(model, QuantizationSettings("int8-weight-only"))
    found = state_of(quantized, {}).tensors
    assert "1.running_mean" in found
    assert not {"0.codes", "0.scales", "0.factors"} & found.keys()


class ReturnsItsBuffer(torch.nn.Module):
    """A sum of all inputs in a buffer, which is also returned."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum."""
        return self.total.add_(x.sum(0))


def test_output_that_is_a_buffer_is_compared_with_the_values_after_the_call() -> None:
    model = ReturnsItsBuffer()
    report = check(model, model)
    assert [output.name for output in report.outputs] == ["output", "total after the call"]
    assert model.total.count_nonzero() == 0
