"""`grad`, `vjp` and `jvp` of functions with writes, and inside function transforms, compared with `torch.func`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.errors import NotDifferentiable


def write_view(x: Tensor) -> Tensor:
    """Write to a view of a computed tensor."""
    y = x.clone()
    y.t().mul_(3)
    return (y * x).sum()


def fill_buffer(x: Tensor) -> Tensor:
    """Write the argument to a part of a tensor that has no tangent."""
    y = torch.zeros(3)
    y[0:2] = x
    return (y * y).sum()


def copy_and_write_view(x: Tensor) -> Tensor:
    """Write to a view of a tensor that gets its values by a write."""
    y = torch.zeros(2)
    y.copy_(x)
    y[0].add_(1)
    return (y * y).sum()


def change_shape(x: Tensor) -> Tensor:
    """Change the shape of a computed tensor in place."""
    y = x.clone()
    y.unsqueeze_(0)
    y.mul_(2)
    return (y * y).sum()


def write_argument(x: Tensor) -> Tensor:
    """Write to the argument, and with it to its tangent."""
    x.mul_(2)
    return (x * x).sum()


def write_view_of_argument(x: Tensor) -> Tensor:
    """Write to a view of the argument."""
    x[0:1].mul_(2)
    return (x * x).sum()


LOCAL_WRITES = (write_view, fill_buffer, copy_and_write_view, change_shape)
DERIVATIVES: dict[str, Callable[..., Any]] = {
    "jvp": lambda library, f: lambda x, t: library.jvp(f, (x,), (t,)),
    "vjp": lambda library, f: lambda x, t: library.vjp(f, x)[1](t.sum()),
    "grad": lambda library, f: lambda x, t: library.grad(f)(x),
}


def results_and_arguments(derivative: Callable[..., Any]) -> list[Any]:
    """Return the derivative's results, and the arguments after the call."""
    x, t = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.5])
    return [derivative(x, t), x, t]


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("name", DERIVATIVES)
@pytest.mark.parametrize("function", LOCAL_WRITES)
def test_derivative_of_function_with_writes(function, name, compiles):
    derivative, expected = (DERIVATIVES[name](library, function) for library in (thunder, torch.func))
    ours = results_and_arguments(thunder.jit(derivative) if compiles else derivative)
    torch.testing.assert_close(ours, results_and_arguments(expected), rtol=0, atol=0)


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("function", [write_argument, write_view_of_argument])
def test_jvp_writes_arguments_and_tangents_as_torch_func(function, compiles):
    derivative, expected = (DERIVATIVES["jvp"](library, function) for library in (thunder, torch.func))
    ours = results_and_arguments(thunder.jit(derivative) if compiles else derivative)
    torch.testing.assert_close(ours, results_and_arguments(expected), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["vjp", "grad"])
def test_gradient_of_a_written_argument_raises_eagers_error(name):
    for compiles in (False, True):
        derivative = DERIVATIVES[name](thunder, write_argument)
        with pytest.raises(RuntimeError, match="a leaf Variable that requires grad is being used in an in-place"):
            results_and_arguments(thunder.jit(derivative) if compiles else derivative)


def test_vjp_refuses_integer_results():
    x = torch.ones(2)
    for function in (lambda x: x.long(), lambda x: (x, x > 0)):
        with pytest.raises(
            NotDifferentiable, match="floating-point or complex tensors, but returned a tensor of torch"
        ):
            thunder.vjp(function, x)
        with pytest.raises(
            NotDifferentiable, match="floating-point or complex tensors, but returned a tensor of torch"
        ):
            thunder.jit(lambda x, f=function: thunder.vjp(f, x)[0])(x)


def test_returned_arguments_are_the_arguments_as_in_torch_func():
    def identities(library: Any, x: Tensor) -> tuple[bool, ...]:
        return (
            library.vjp(lambda x: x, x)[0] is x,
            library.vjp(lambda x: (x.sin(), x), x, has_aux=True)[2] is x,
            library.grad(lambda x: (x.sin(), x), has_aux=True)(x)[1] is x,
            library.jvp(lambda x: x, (x,), (x,))[0] is x,
        )

    x = torch.tensor(2.0)
    assert identities(thunder, x) == thunder.jit(identities)(thunder, x) == identities(torch.func, x)


TRANSFORMED: dict[str, Callable[..., Any]] = {
    "vmap of grad": lambda library, f, xs: torch.vmap(library.grad(f))(xs),
    "vmap of grad with aux": lambda library, f, xs: torch.vmap(library.grad(lambda x: (f(x), x), has_aux=True))(xs),
    "vmap of jvp": lambda library, f, xs: torch.vmap(lambda x: library.jvp(f, (x,), (x.cos(),)))(xs),
    "vmap of vjp": lambda library, f, xs: torch.vmap(lambda x: library.vjp(f, x)[1](torch.tensor(1.0)))(xs),
    "grad of grad": lambda library, f, xs: torch.func.grad(lambda x: library.grad(f)(x).sum())(xs),
    "jacfwd of grad": lambda library, f, xs: torch.func.jacfwd(library.grad(f))(xs[0]),
    "vmap of a pullback": lambda library, f, xs: torch.vmap(library.vjp(torch.sin, xs[0])[1])(torch.eye(2)),
}


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_derivative_inside_function_transform(name, compiles):
    def function(x: Tensor) -> Tensor:
        return (x**3).sum()

    def program(xs: Tensor) -> Any:
        return TRANSFORMED[name](thunder, function, xs)

    xs = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.0]])
    ours = (thunder.jit(program) if compiles else program)(xs)
    torch.testing.assert_close(ours, TRANSFORMED[name](torch.func, function, xs))
