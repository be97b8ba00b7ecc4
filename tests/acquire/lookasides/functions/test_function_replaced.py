"""Methods of a `torch.autograd.Function` that are replaced on the class between calls of a compiled program."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import thunder_core as thunder


def fresh_function() -> type[torch.autograd.Function]:
    """Return a function that doubles, with the gradient of a function that doubles."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.factor = 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.factor

    return Doubled


def set_other_factor(ctx, inputs, output) -> None:
    ctx.factor = 5


REPLACEMENTS = {
    "backward": lambda ctx, gradient: gradient * 7,
    "forward": lambda x: x * 3,
    "setup_context": set_other_factor,
}


def gradient_of(program: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    x = torch.ones(2, requires_grad=True)
    result = program(x)
    (gradient,) = torch.autograd.grad(result.sum(), x)
    return result.detach(), gradient


@pytest.mark.parametrize("executors", [("torch",), ("inductor", "torch")])
@pytest.mark.parametrize("name", REPLACEMENTS)
def test_a_method_that_is_replaced_is_called(name, executors):
    kind = fresh_function()
    program = lambda x: kind.apply(x * 1) + 1  # noqa: E731
    compiled = thunder.jit(program, executors=executors)
    assert all(map(torch.equal, gradient_of(compiled), gradient_of(program)))
    setattr(kind, name, staticmethod(REPLACEMENTS[name]))
    for _ in range(2):
        assert all(map(torch.equal, gradient_of(compiled), gradient_of(program)))
    assert thunder.cache_misses(compiled) == 2


def test_a_method_of_a_base_class_that_is_replaced_is_called():
    base = fresh_function()

    class Derived(base):
        pass

    program = lambda x: Derived.apply(x)  # noqa: E731
    compiled = thunder.jit(program)
    assert all(map(torch.equal, gradient_of(compiled), gradient_of(program)))
    base.backward = staticmethod(REPLACEMENTS["backward"])
    assert all(map(torch.equal, gradient_of(compiled), gradient_of(program)))
    assert gradient_of(compiled)[1].tolist() == [7.0, 7.0]


def test_new_method_that_overrides_a_base_class_method_is_called():
    class Derived(fresh_function()):
        pass

    program = lambda x: Derived.apply(x)  # noqa: E731
    compiled = thunder.jit(program)
    gradient_of(compiled)
    Derived.backward = staticmethod(REPLACEMENTS["backward"])
    assert all(map(torch.equal, gradient_of(compiled), gradient_of(program)))


def test_calls_without_a_change_are_served_by_one_program():
    kind = fresh_function()
    compiled = thunder.jit(lambda x: kind.apply(x))
    for _ in range(3):
        gradient_of(compiled)
    assert thunder.cache_misses(compiled) == 1
