"""A `torch.autograd.Function` is applied with its own backward, however a program spells the call."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder

FACTOR = {"forward": 2.0}


class Scaled(torch.autograd.Function):
    """A function whose gradient is not the derivative, which reads a global and takes a default and keywords."""

    @staticmethod
    def forward(x: Tensor, factor: float = 3.0, shift: Tensor | None = None) -> Tensor:
        return x * factor * FACTOR["forward"] + (0 if shift is None else shift)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.factor * 10, None, gradient * 7 if ctx.needs_input_grad[2] else None


class Inherited(Scaled):
    """A function that inherits its methods."""


class Counted(Scaled):
    """A function with its own `apply`, which calls the `apply` of its base class."""

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        return super().apply(*args, **kwargs) + 1


def held(x: Tensor, shift: Tensor) -> Tensor:
    apply = Scaled.apply
    return apply(x) + shift


SPELLINGS = {
    "plain": lambda x, shift: Scaled.apply(x, 2.0, shift),
    "default": lambda x, shift: Scaled.apply(x) + shift,
    "keywords": lambda x, shift: Scaled.apply(x, shift=shift, factor=4.0),
    "held": held,
    "partial": lambda x, shift: functools.partial(Scaled.apply, factor=5.0)(x, shift=shift),
    "map": lambda x, shift: sum(map(Scaled.apply, (x, shift))),
    "getattr": lambda x, shift: getattr(Scaled, "apply")(x, 2.0, shift),  # noqa: B009
    "inherited": lambda x, shift: Inherited.apply(x, 2.0, shift),
    "own apply": lambda x, shift: Counted.apply(x, 2.0, shift),
    "nested": lambda x, shift: Scaled.apply(Scaled.apply(x, 0.5), 2.0, shift),
}


@pytest.mark.parametrize("requires_grad", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", SPELLINGS)
def test_each_spelling_matches_eager_and_reads_are_guarded(name, requires_grad, monkeypatch):
    program = SPELLINGS[name]
    compiled = thunder.jit(program)
    for factor in (2.0, 5.0):
        monkeypatch.setitem(FACTOR, "forward", factor)
        results = []
        for function in (compiled, program):
            x, shift = (torch.arange(1.0, 4.0) * scale for scale in (1, 3))
            x.requires_grad_(requires_grad)
            shift.requires_grad_(requires_grad)
            output = function(x, shift)
            if requires_grad:
                (output * torch.arange(3.0)).sum().backward()
            results.append((output.detach(), x.grad, shift.grad))
        assert output.requires_grad == requires_grad
        torch.testing.assert_close(*results)


def test_forward_that_is_replaced_after_tracing_is_called(monkeypatch):
    compiled = thunder.jit(lambda x: Scaled.apply(x))

    def gradient_and_value() -> tuple[Tensor, Tensor | None]:
        x = torch.ones(2, requires_grad=True)
        output = compiled(x)
        output.sum().backward()
        return output.detach(), x.grad

    gradient_and_value()
    monkeypatch.setattr(Scaled, "forward", staticmethod(less_one))
    x = torch.ones(2, requires_grad=True)
    expected = Scaled.apply(x)
    expected.sum().backward()
    torch.testing.assert_close(gradient_and_value(), (expected.detach(), x.grad))


def less_one(x: Tensor, factor: float = 3.0, shift: Tensor | None = None) -> Tensor:
    """Replace the forward of a function."""
    return x - 1
