"""torch.autograd.Function in a program: its own backward is used, whatever operations its forward contains."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.foundation.errors import ArtifactForeign, CannotReplay
from thunder_core.passes.transforms.functionalize import Functionalize

X = torch.tensor([1.0, 2.0, 3.0])


class DoubledInPlace(torch.autograd.Function):
    """Writes to its argument; the gradient of its backward differs from the derivative of the written value."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 10


class Shown(torch.autograd.Function):
    """A view of its argument, with a gradient of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 10


def result_used(x: Tensor) -> Tensor:
    return (DoubledInPlace.apply(x * 1) * 2).sum()


def argument_used(x: Tensor) -> Tensor:
    y = x * 1
    DoubledInPlace.apply(y)
    return (y * 2).sum()


def view_of_what_was_written(x: Tensor) -> Tensor:
    y = x * 1
    y.mul_(3)
    return (Shown.apply(y) * 2).sum()


WAYS: dict[str, dict[str, Any]] = {
    "torch": {},
    "inductor": {"executors": ("inductor", "torch")},
    "functionalized": {"transforms": [Functionalize()]},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", [result_used, argument_used, view_of_what_was_written])
def test_custom_backward_is_used_for_a_function_that_writes(program: Callable[[Tensor], Tensor], way: str) -> None:
    found, wanted = X.clone().requires_grad_(), X.clone().requires_grad_()
    thunder.jit(program, **WAYS[way])(found).backward()
    program(wanted).backward()
    torch.testing.assert_close(found.grad, wanted.grad)


def test_a_tensor_from_outside_that_a_function_writes_to_keeps_its_graph() -> None:
    gradients = []
    for run in (DoubledInPlace.apply, thunder.jit(lambda y: DoubledInPlace.apply(y))):
        x = X.clone().requires_grad_()
        y = x * 3
        assert run(y) is y
        y.sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


def test_derivative_through_a_write_with_a_custom_backward_raises_the_error_of_torch_func() -> None:
    with pytest.raises(RuntimeError, match="must override the setup_context"):
        thunder.grad(result_used)(X)


class Local(Shown):
    """A function that is replaced by another."""


def shown(x: Tensor) -> Tensor:
    return (Local.apply(x * 1) * 2).sum()


def test_an_artifact_has_the_function_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = thunder.jit(shown)
    expected = torch.autograd.grad(compiled(x := X.clone().requires_grad_()), x)
    kept = thunder.save(compiled, tmp_path / "kept")
    torch.testing.assert_close(torch.autograd.grad(thunder.load(kept, shown, strict=True)(x), x), expected)
    for wrong_class in (Tensor, Shown):
        monkeypatch.setattr(sys.modules[__name__], "Local", wrong_class)
        with pytest.raises(ArtifactForeign, match="cannot be found"):
            thunder.load(kept, shown, strict=True)(x)


def test_a_function_that_nothing_imports_is_not_kept(tmp_path: Path) -> None:
    class Hidden(Shown):
        pass

    compiled = thunder.jit(lambda x: Hidden.apply(x * 1))
    compiled(X.clone().requires_grad_())
    with pytest.raises(CannotReplay, match="cannot be saved"):
        thunder.save(compiled, tmp_path / "kept")


class State:
    """An object that functions read and programs write to."""

    def __init__(self) -> None:
        self.level: float = 2.0
        self.count = 0
        self.scale = torch.tensor(3.0)
        self.table = {"level": 2.0}
        self.items = [2.0]


state = State()
factor = 2.0


def nothing() -> None:
    """Change nothing between two calls."""


def rise() -> None:
    """Change a number between two calls."""
    state.level += 1


class ByState(torch.autograd.Function):
    """Reads attributes, items, a global and a tensor, in the forward and in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, held: State) -> Tensor:
        ctx.held = held
        return x * held.level * held.table["level"] * held.items[0] * factor * held.scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        held = ctx.held
        return gradient * held.level * held.table["level"] * held.items[0] * factor * held.scale * 10, None


class ReadInBackward(torch.autograd.Function):
    """Reads a number only in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * state.level


class Counting(torch.autograd.Function):
    """Writes in its forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        state.count += 1
        state.scale = x.sum()
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


class CountingBackward(torch.autograd.Function):
    """Writes in its backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        state.count += 1
        return gradient * 3


def attribute_written(x: Tensor) -> Tensor:
    state.level = state.level + 1
    return ByState.apply(x, state)


def number_of_a_tensor_written(x: Tensor) -> Tensor:
    state.level = x.detach().mean().item()
    return ByState.apply(x, state)


def tensor_written(x: Tensor) -> Tensor:
    state.scale = x.detach().mean()
    return ByState.apply(x, state) + state.scale


def item_of_dict_written(x: Tensor) -> Tensor:
    state.table["level"] += 1
    return ByState.apply(x, state)


def item_of_list_written(x: Tensor) -> Tensor:
    state.items[0] += 1
    return ByState.apply(x, state)


def global_written(x: Tensor) -> Tensor:
    global factor
    factor += 1
    return ByState.apply(x, state)


def written_between(x: Tensor) -> Tensor:
    first = ByState.apply(x, state)
    state.level = state.level + 1
    return first + ByState.apply(x, state)


WRITING = [
    attribute_written,
    number_of_a_tensor_written,
    tensor_written,
    item_of_dict_written,
    item_of_list_written,
    global_written,
    written_between,
]


def calls(
    program: Callable[[Tensor], Tensor], *, requires_grad: bool, between: Callable[[], None] = nothing
) -> list[Any]:
    """Return the results, the gradients and the state of four calls."""
    global factor
    factor = 2.0
    state.__init__()  # type: ignore[misc]
    found = []
    for number in range(4):
        x = (X + number).requires_grad_(requires_grad)
        result = program(x)
        if requires_grad:
            result.sum().backward()
        kept = (state.level, state.count, state.scale.tolist(), dict(state.table), list(state.items), factor)
        found.append((result.tolist(), None if x.grad is None else x.grad.tolist(), kept))
        between()
    return found


@pytest.mark.parametrize("program", WRITING)
def test_forward_reads_earlier_writes_of_the_program(program: Callable[[Tensor], Tensor]) -> None:
    assert calls(thunder.jit(program), requires_grad=False) == calls(program, requires_grad=False)
    with torch.no_grad():
        compiled = thunder.jit(program)
        assert calls(compiled, requires_grad=False) == calls(program, requires_grad=False)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("program", WRITING)
def test_forward_under_autograd_reads_earlier_writes_of_the_program(
    program: Callable[[Tensor], Tensor], way: str
) -> None:
    assert calls(thunder.jit(program, **WAYS[way]), requires_grad=True) == calls(program, requires_grad=True)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "program", [lambda x: ByState.apply(x, state), lambda x: ReadInBackward.apply(x)], ids=["forward", "backward"]
)
def test_reads_of_a_function_are_guarded(program: Callable[[Tensor], Tensor], requires_grad: bool) -> None:
    found = calls(thunder.jit(program), requires_grad=requires_grad, between=rise)
    assert found == calls(program, requires_grad=requires_grad, between=rise)


def test_value_that_a_forward_writes_is_read_after_it() -> None:
    def program(x: Tensor) -> Tensor:
        return Counting.apply(x) * state.count + state.scale

    assert calls(thunder.jit(program), requires_grad=False) == calls(program, requires_grad=False)


def test_forward_that_writes_under_autograd_writes_once_a_call() -> None:
    def program(x: Tensor) -> Tensor:
        return Counting.apply(x) * state.count + state.scale

    assert calls(thunder.jit(program), requires_grad=True) == calls(program, requires_grad=True)


@pytest.mark.parametrize("way", WAYS)
def test_backward_reads_the_state_after_the_program(way: str) -> None:
    def before(x: Tensor) -> Tensor:
        state.level = state.level + 1
        return ReadInBackward.apply(x)

    def behind(x: Tensor) -> Tensor:
        result = ReadInBackward.apply(x)
        state.level = state.level + 1
        return result

    for program in (before, behind):
        compiled = thunder.jit(program, **WAYS[way])
        assert calls(compiled, requires_grad=True) == calls(program, requires_grad=True)
        assert "runs after the program" in thunder.last_backward_reason(compiled)


def test_a_backward_that_writes_writes_once_a_call() -> None:
    def program(x: Tensor) -> Tensor:
        return CountingBackward.apply(x)

    assert calls(thunder.jit(program), requires_grad=True) == calls(program, requires_grad=True)


def test_backward_without_outside_reads_is_derived_ahead() -> None:
    compiled = thunder.jit(lambda x: (Shown.apply(x * 1) * 2).sum())
    compiled(X.clone().requires_grad_()).backward()
    assert thunder.last_backward_reason(compiled) == ""


def test_function_without_differentiable_inputs_is_its_operations() -> None:
    weight = torch.nn.Parameter(torch.ones(3))

    class Weighted(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * weight

    def program(x: Tensor) -> Tensor:
        return Weighted.apply(x) * weight

    compiled = thunder.jit(program)
    gradients = [torch.autograd.grad(run(X).sum(), weight)[0] for run in (program, compiled)]
    torch.testing.assert_close(*gradients)
    assert "Weighted(" not in str(thunder.last_traces(compiled)[0])


class ScaledByDraw(torch.autograd.Function):
    """A function whose forward scales by a random number of NumPy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.scale = np.random.rand()
        return x * ctx.scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * ctx.scale


class ScaledByMask(ScaledByDraw):
    """A function whose forward compares the items of a random array in a Python function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.scale = sum(drawn_mask(4))
        return x * ctx.scale


def drawn_mask(size: int) -> list[float]:
    return [1.0 if value > 0.5 else 0.0 for value in np.random.rand(size)]


@pytest.mark.parametrize("kind", [ScaledByDraw, ScaledByMask])
def test_forward_that_draws_outside_of_pytorch_draws_at_each_call(kind: type[torch.autograd.Function]) -> None:
    found = []
    for program in (thunder.jit(lambda x: kind.apply(x)), kind.apply):
        np.random.seed(0)
        found.append(calls(program, requires_grad=True))
    assert found[0] == found[1]
    assert len({str(result) for result in found[0]}) == 4
