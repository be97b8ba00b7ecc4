"""Derivatives of users and executors take precedence over PyTorch's own, in every way of differentiation.

Each rule is wrong on purpose, so that it differs from the true derivative.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import thunder_core as thunder
from thunder_core.compilation.compiler import last_program
from thunder_core.foundation.errors import NotDifferentiable, WrongInputs
from thunder_core.passes.autodiff import rules
from thunder_core.tracing.analysis.own_derivatives import OWN_DERIVATIVES


class Sevenfold(torch.autograd.Function):
    """A sine whose derivative is seven times its input."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        hidden = x * factor
        ctx.save_for_backward(x, hidden)
        return hidden.sin()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        x, hidden = ctx.saved_tensors
        return gradient * x * 7 + hidden.detach() * 0, None


class Reversed(torch.autograd.Function):
    """The identity, with its gradient reversed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return -gradient


@torch.library.custom_op("thunder_tests::triple", mutates_args=())
def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3


@triple.register_fake
def like(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


triple.register_autograd(lambda ctx, gradient: gradient * 300)

PROGRAMS = {
    "function": lambda x: Sevenfold.apply(x, 2.0).exp(),
    "returned": lambda x: Reversed.apply(x),
    "reversed": lambda x: Reversed.apply(x.sin()) * x,
    "library": lambda x: triple(x.exp()) * x,
    "recorded": lambda x: functional.relu(Sevenfold.apply(x, 3.0), inplace=True) * 2,
}


def numbers(seed: int = 0) -> torch.Tensor:
    return torch.randn(4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_uses_custom_derivatives(name):
    found = []
    for function in (PROGRAMS[name], thunder.jit(PROGRAMS[name])):
        x = numbers().requires_grad_(True)
        output = function(x)
        output.square().sum().backward()
        found.append([output, x.grad])
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", ["function", "reversed", "library"])
def test_second_derivatives_use_custom_derivatives(name):
    found = []
    for function in (PROGRAMS[name], thunder.jit(PROGRAMS[name])):
        x = numbers().requires_grad_(True)
        (first,) = torch.autograd.grad(function(x).square().sum(), [x], create_graph=True)
        found.append(torch.autograd.grad(first.sum(), [x])[0])
    torch.testing.assert_close(*found)
    twice = thunder.grad(lambda x: thunder.grad(lambda y: PROGRAMS[name](y).square().sum())(x).sum())
    torch.testing.assert_close(twice(numbers()), found[0])


@pytest.mark.parametrize("name", PROGRAMS)
def test_thunder_grad_uses_custom_derivatives(name):
    x = numbers().requires_grad_(True)
    PROGRAMS[name](x).sum().backward()
    total = lambda x: PROGRAMS[name](x).sum()  # noqa: E731
    torch.testing.assert_close(thunder.grad(total)(numbers()), x.grad)
    tangent = thunder.jvp(total, (numbers(),), (numbers(1),))[1]
    torch.testing.assert_close(tangent, (x.grad * numbers(1)).sum())


def test_function_with_a_custom_derivative_is_one_line():
    compiled = thunder.jit(PROGRAMS["function"])
    compiled(numbers().requires_grad_(True)).sum().backward()
    assert [line.symbol.short_name for line in thunder.last_traces(compiled)[0].bound_symbols] == ["Sevenfold", "exp"]
    assert last_program(compiled).no_backward_reason == ""
    assert thunder.last_backward_traces(compiled)


@pytest.fixture
def forgotten(monkeypatch):
    before = set(OWN_DERIVATIVES)
    monkeypatch.setattr(rules, "_rules", dict(rules._rules))
    yield
    OWN_DERIVATIVES.intersection_update(before)


def register(operation: Any) -> None:
    def save(ctx: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        ctx.save_for_backward(args[0])

    @thunder.register_derivative(operation, setup_context=save)
    def sevenfold(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * ctx.saved_tensors[0] * 7


def silu_then(x: torch.Tensor) -> torch.Tensor:
    return functional.silu(x) * 2


def silu_written(x: torch.Tensor) -> torch.Tensor:
    return functional.silu(x).mul_(2)


@pytest.mark.parametrize("program", [silu_then, silu_written])
def test_derivative_of_the_user_is_used(program, forgotten):
    register(functional.silu)
    compiled, x = thunder.jit(program), numbers().requires_grad_(True)
    output = compiled(x)
    torch.testing.assert_close(output, program(x))
    (first,) = torch.autograd.grad(output.sum(), [x], create_graph=True)
    torch.testing.assert_close(first, 14 * x)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), [x])[0], torch.full_like(x, 14.0))
    torch.testing.assert_close(thunder.grad(lambda x: program(x).sum())(numbers()), 14 * numbers())
    torch.testing.assert_close(thunder.jvp(program, (numbers(),), (numbers(1),))[1], 14 * numbers() * numbers(1))


def test_derivative_of_an_executor_is_used(forgotten):
    mine = thunder.OperatorExecutor("mine")

    @mine.implements(functional.silu)
    def my_silu(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:  # noqa: A002
        return input * input.sigmoid()

    register(my_silu)
    compiled, x = thunder.jit(silu_then, executors=[mine, "torch"]), numbers().requires_grad_(True)
    compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, 14 * x)
    assert "mine" in [line.executor for line in thunder.last_traces(compiled)[-1].bound_symbols]


def test_derivative_for_several_tensors_is_used(forgotten):
    @thunder.register_derivative(functional.linear)
    def constant(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return gradient.sum().expand(2, 4), None, gradient.sum(0) * 5

    weight, bias = torch.ones(3, 4, requires_grad=True), torch.zeros(3, requires_grad=True)
    x = torch.ones(2, 4, requires_grad=True)
    thunder.jit(lambda x: functional.linear(x, weight, bias=bias))(x).sum().backward()
    torch.testing.assert_close([x.grad, bias.grad], [torch.full((2, 4), 6.0), torch.full((3,), 10.0)])
    assert weight.grad is None


@torch.library.custom_op("thunder_tests::closed", mutates_args=())
def closed(x: torch.Tensor) -> torch.Tensor:
    return x * 3


closed.register_fake(torch.empty_like)


def test_operation_without_a_derivative_is_refused_with_its_line():
    def total(x: torch.Tensor) -> torch.Tensor:
        return closed(x).sum()

    with pytest.raises(NotDifferentiable, match=r"thunder_tests\.closed\.default") as caught:
        thunder.grad(total)(numbers())
    assert caught.value.where is not None
    assert (caught.value.where.filename, caught.value.where.lineno) == (__file__, total.__code__.co_firstlineno + 1)


def test_derivative_of_a_value_that_is_not_callable_is_refused():
    with pytest.raises(WrongInputs, match="registered for 3, which cannot be called"):
        thunder.register_derivative(3)
