"""torch.func.linearize in a compiled program: the function runs once, and its derivative is taken at the primals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import jvp, linearize, vmap

import thunder_core as thunder

# PyTorch compiles its own decompositions at their first use, and folds constants of its own graph.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`torch.jit.script` is deprecated:DeprecationWarning", "ignore:Attempted to insert a get_attr Node"
)

X = torch.tensor([0.5, 1.0, 2.0])
W = torch.linspace(0.5, 2.0, 3, requires_grad=True)


def scaled(x: Tensor) -> dict[str, Tensor]:
    return {"sines": (x * W).sin(), "sum": x.exp().sum()}


def used_often(x: Tensor) -> Any:
    output, derivative = linearize(scaled, x)
    return output, derivative(x), derivative(x * 2), vmap(derivative)(torch.eye(3))


def test_linearize_matches_eager() -> None:
    compiled = thunder.jit(used_often)
    for x in (X, X * 3):
        torch.testing.assert_close(compiled(x), used_often(x))
    assert thunder.cache_misses(compiled) == 1


def test_gradients_of_linearize_match_jvp() -> None:
    """Eager PyTorch's derivative treats the primals as constants, as `make_fx` does."""

    def linearized(x: Tensor) -> Tensor:
        return linearize(lambda y: (y * W).sin(), x)[1](x * 2).sum()

    def forward_mode(x: Tensor) -> Tensor:
        return jvp(lambda y: (y * W).sin(), (x,), (x * 2,))[1].sum()

    x = X.clone().requires_grad_()
    found, expected = (torch.autograd.grad(run(x), (x, W)) for run in (thunder.jit(linearized), forward_mode))
    torch.testing.assert_close(found, expected)


def test_function_runs_once_and_before_later_writes() -> None:
    calls: list[int] = []

    def counted(x: Tensor) -> Tensor:
        calls.append(1)
        return x.sin()

    def program(x: Tensor) -> Tensor:
        place = x * 1
        _, derivative = linearize(counted, place)
        place.add_(1)
        return derivative(x) + derivative(x)

    torch.testing.assert_close(thunder.jit(program)(X), 2 * X * X.cos())
    assert calls == [1]


ERRORS: dict[str, tuple[Callable[[Tensor], Any], str]] = {
    "structure": (lambda x: linearize(torch.sin, x)[1](x, x), "to have the same argspec as the primals"),
    "shape": (lambda x: linearize(torch.sin, x)[1](x[:2]), "tangent:0 with shape .* doesn't match the shape"),
    "dtype": (lambda x: linearize(torch.sin, x)[1](x.double()), "tangent:0 with dtype torch.float64"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_match_pytorch(name: str) -> None:
    program, message = ERRORS[name]
    for run in (program, thunder.jit(program)):
        with pytest.raises(RuntimeError, match=message):
            run(X)
