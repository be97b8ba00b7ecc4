"""Common subexpressions are shared only if the difference cannot be observed, compared with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder


def scaling(factor: float) -> Any:
    """An autograd function that multiplies. All such functions have the same printed name."""

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * factor

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient * factor

    return Scale


class Factor:
    """A number that has the text of every other such number, and compares equal to it."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __repr__(self) -> str:
        return "Factor()"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Factor)

    def __hash__(self) -> int:
        return 0


class ScaleBy(torch.autograd.Function):
    """An autograd function that multiplies by the number of an object."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, by: Factor) -> Tensor:
        ctx.by = by
        return x * by.factor

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.by.factor, None


TWICE, THRICE = scaling(2.0), scaling(3.0)
OBJECTS = Factor(2.0), Factor(3.0)


def with_hook(x: Tensor) -> Tensor:
    y, same = x * 2, x * 2
    y.register_hook(lambda gradient: gradient * 10)
    return (y * 3 + same * 5).sum()


def with_hook_on_view(x: Tensor) -> Tensor:
    y, same = (x * 2).view(-1), (x * 2).view(-1)
    y.register_hook(lambda gradient: gradient * 10)
    return (y * 3 + same * 5).sum()


def with_leaf(x: Tensor) -> tuple[Tensor, Tensor | None]:
    y, same = x.detach() * 2, x.detach() * 2
    y.requires_grad_()
    (y * 3 + same * 5 + x).sum().backward()
    return same * 1, y.grad


PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "one input": lambda x: (TWICE.apply(x) + THRICE.apply(x)).sum(),
    "two inputs": lambda x: (TWICE.apply(x * 1) + THRICE.apply(x * 5)).sum(),
    "objects": lambda x: (ScaleBy.apply(x, OBJECTS[0]) + ScaleBy.apply(x, OBJECTS[1])).sum(),
    "objects, two inputs": lambda x: (ScaleBy.apply(x * 1, OBJECTS[0]) + ScaleBy.apply(x * 5, OBJECTS[1])).sum(),
    "hook": with_hook,
    "hook on a view": with_hook_on_view,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_distinguishable_expressions_stay_separate(name: str) -> None:
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    theirs = PROGRAMS[name](x)
    ours = thunder.jit(PROGRAMS[name])(x)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, x), torch.autograd.grad(theirs, x))


def test_a_tensor_that_becomes_a_leaf_is_no_other() -> None:
    x = torch.tensor([1.0, -2.0], requires_grad=True)
    theirs, ours = with_leaf(x), thunder.jit(with_leaf)(x)
    torch.testing.assert_close(ours, theirs)
    assert [result.requires_grad for result in ours] == [result.requires_grad for result in theirs]


def test_zeros_of_complex_numbers_have_signs() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.stack([x * 0j, x * complex(-0.0, -0.0)])

    x = torch.tensor([1.0 + 0j])
    assert repr(thunder.jit(program)(x)) == repr(program(x))


def test_equal_lines_are_merged() -> None:
    fast = thunder.jit(lambda x, n: (x.tanh() * n, x.tanh() + x[1:].expand(3, 1) + x[1:].expand(3, 1)))
    fast(torch.ones(2), 2)
    names = [bsym.symbol.short_name for bsym in thunder.last_traces(fast)[-1].bound_symbols]
    assert names.count("tanh") == 1
    assert names.count("expand") == 1


def test_gradients_of_casts_are_added_with_all_bits() -> None:
    def program(x: Tensor, weights: Tensor) -> Tensor:
        return torch.stack([(x.to(torch.bfloat16) * weight).sum().float() for weight in weights]).sum()

    x, weights = torch.ones(3, requires_grad=True), torch.tensor([1.0] * 20 + [256.0]).bfloat16()
    fast = thunder.jit(program)
    (theirs,) = torch.autograd.grad(program(x, weights), x)
    (ours,) = torch.autograd.grad(fast(x, weights), x)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    with torch.no_grad():
        torch.testing.assert_close(fast(x, weights), program(x, weights))
    lines = [bsym for bsym in thunder.last_traces(fast)[-1].bound_symbols if "to" in bsym.symbol.name.split(".")]
    assert len(lines) == 1, thunder.last_traces(fast)[-1]
