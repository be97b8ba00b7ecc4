"""Gradients of NaN and infinity through reductions that select elements: other elements get zero, as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import thunder_core as thunder

REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "max": lambda x: x.max(),
    "min": lambda x: x.min(),
    "median": lambda x: x.median(),
    "nanmedian": torch.nanmedian,
    "amax": lambda x: x.amax(),  # whose formula multiplies, in eager PyTorch too
}


@pytest.mark.parametrize("values", [(1.0, 3.0, 0.0, 2.0, 3.0, 0.0), (1.0, float("nan"), 2.0, 0.0, 3.0, float("nan"))])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_unselected_elements_get_the_gradient_of_eager(name: str, values: tuple[float, ...]) -> None:
    compiled = thunder.jit(REDUCTIONS[name], executors=("torch",))
    for gradient in (float("nan"), float("inf"), 2.0):
        found = []
        for function in (REDUCTIONS[name], compiled):
            x = torch.tensor(values).reshape(2, 3).t().requires_grad_()
            result = function(x)
            found.append(torch.autograd.grad(result, x, torch.full_like(result, gradient))[0])
        torch.testing.assert_close(found[1], found[0], equal_nan=True, rtol=0, atol=0)
    assert thunder.cache_misses(compiled) == 1


def test_a_second_derivative_matches_eager() -> None:
    def program(x: Tensor) -> Tensor:
        return (x.exp().max() * x.sum()).log()

    found = []
    for function in (program, thunder.jit(program, executors=("torch",))):
        x = torch.linspace(0.5, 2, 4).requires_grad_()
        (first,) = torch.autograd.grad(function(x), x, create_graph=True)
        found.append((first, *torch.autograd.grad(first.square().sum(), x)))
    torch.testing.assert_close(found[1], found[0])
