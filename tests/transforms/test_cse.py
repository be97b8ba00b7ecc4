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


def functions_called(program: Callable[..., Any], *args: Any) -> list[str]:
    compiled = thunder.jit(program)
    before = [argument.clone() for argument in args]
    with torch.no_grad():
        torch.testing.assert_close(compiled(*args), program(*before), rtol=0, atol=0)
    torch.testing.assert_close(args, tuple(before))
    return [bsym.symbol.short_name for bsym in thunder.last_traces(compiled)[-1].bound_symbols]


# Programs whose copies are not needed.
COPIES: dict[str, Callable[[Tensor], Any]] = {
    "cat with an empty tensor": lambda x: torch.cat([torch.tensor([]), x]) * 2,
    "cat of one tensor": lambda x: torch.cat([x], dim=-1) * 2,
    "cat with an empty part": lambda x: torch.cat([x[:0], x, x[2:2]]) * 2,
    "clone": lambda x: x.clone() * 2,
    "copies of copies": lambda x: torch.cat([torch.cat([torch.tensor([]), x.clone()])]) * 2,
    "copy of a result": lambda x: torch.cat([torch.tensor([]), x * 3]) * 2,
}


@pytest.mark.parametrize("name", COPIES)
def test_readers_of_a_copy_read_the_tensor(name: str) -> None:
    assert {"cat", "clone", "tensor", "zeros"}.isdisjoint(functions_called(COPIES[name], torch.arange(6.0).view(3, 2)))


def written_copy(x: Tensor) -> Tensor:
    y = x.clone()
    y += 1
    return x * 2 + y


def written_source(x: Tensor) -> Tensor:
    y = x * 1
    z = torch.cat([torch.tensor([]), y])
    y += 1
    return y + z


def viewed_copy(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.clone()
    return y * 2, y.view(-1)


def read_by_place(x: Tensor) -> Tensor:
    return x[1:].clone().as_strided((2, 2), (2, 1), 0) * 2


# Programs whose copies are needed.
NEEDED_COPIES: dict[str, Callable[[Tensor], Any]] = {
    "returned": lambda x: torch.cat([torch.tensor([]), x]),
    "returned view": viewed_copy,
    "written copy": written_copy,
    "written source": written_source,
    "read by place": read_by_place,
    "other layout": lambda x: x.t().clone(memory_format=torch.contiguous_format).view(-1) * 2,
    "other dtype": lambda x: torch.cat([torch.zeros(0, dtype=torch.float64), x]) * 2,
    "two tensors": lambda x: torch.cat([x, x]) * 2,
}


@pytest.mark.parametrize("name", NEEDED_COPIES)
def test_copies_that_can_be_told_apart_stay(name: str) -> None:
    names = functions_called(NEEDED_COPIES[name], torch.arange(6.0).view(3, 2))
    assert not {"cat", "clone"}.isdisjoint(names)


def test_a_returned_copy_has_its_own_memory() -> None:
    x = torch.arange(6.0)
    copy = thunder.jit(lambda x: torch.cat([torch.tensor([]), x]))(x)
    copy += 1
    assert torch.equal(x, torch.arange(6.0))


def test_gradients_pass_through_copies() -> None:
    def program(x: Tensor) -> Tensor:
        return (torch.cat([torch.tensor([]), x.clone()]) * x).sum()

    x = torch.arange(6.0, requires_grad=True)
    (theirs,) = torch.autograd.grad(program(x), x)
    (ours,) = torch.autograd.grad(thunder.jit(program)(x), x)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_copies_with_symbolic_sizes_have_the_values_of_eager() -> None:
    def program(x: Tensor) -> Tensor:
        return torch.cat([torch.tensor([]), x]) * 2 + x.clone()

    compiled = thunder.jit(program, cache="symbolic values")
    for size in (3, 5, 0, 1):
        x = torch.arange(float(size))
        torch.testing.assert_close(compiled(x), program(x))
