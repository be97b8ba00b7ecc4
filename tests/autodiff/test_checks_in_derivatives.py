"""Derivatives raise eager's errors for values: a solver in a formula refuses a singular matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import grad, jvp, vmap

import thunder_core as thunder

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
DEFECTIVE = torch.ones(2).diag(1)  # its eigenvectors are linearly dependent
SINGULAR = torch.ones(3, 3)
REGULAR = torch.tensor([[1.0, 2.0, 0.0], [0.0, 3.0, 1.0], [1.0, 0.0, 5.0]])


def loss(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.eigvals(x).abs().sum()


def gradient(x: torch.Tensor) -> torch.Tensor:
    leaf = x.detach().requires_grad_()
    loss(leaf).backward()
    assert leaf.grad is not None
    return leaf.grad


def gradient_within(x: torch.Tensor) -> torch.Tensor:
    return torch.autograd.grad(loss(x.requires_grad_()), x)[0]


def tangent(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], Any]:
    return lambda x: jvp(function, (x,), (torch.ones_like(x),))


PROGRAMS: dict[str, tuple[Callable[[torch.Tensor], Any], torch.Tensor]] = {
    "backward": (gradient, DEFECTIVE),
    "torch.autograd.grad": (gradient_within, DEFECTIVE),
    "torch.func.grad": (grad(loss), DEFECTIVE),
    "a gradient for each sample": (lambda x: vmap(grad(loss))(x[None]), DEFECTIVE),
    "the tangent of eigenvalues": (tangent(torch.linalg.eigvals), DEFECTIVE),
    "the tangent of a solution": (tangent(lambda x: torch.linalg.solve(x, torch.ones(3))), SINGULAR),
    "the tangent of an inverse": (tangent(torch.linalg.inv), SINGULAR),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_derivative_refuses_a_singular_matrix(name: str) -> None:
    program, refused = PROGRAMS[name]
    compiled = thunder.jit(program)
    for _ in range(2):
        torch.testing.assert_close(compiled(REGULAR.clone()), program(REGULAR.clone()))
        for call in (program, compiled):
            with pytest.raises(torch.linalg.LinAlgError, match="singular"):
                call(refused.clone())


def test_the_backward_of_a_compiled_function_refuses_a_singular_matrix() -> None:
    compiled, x = thunder.jit(loss), DEFECTIVE.clone().requires_grad_()
    total = compiled(x)
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        total.backward()
    compiled(regular := REGULAR.clone().requires_grad_()).backward()
    torch.testing.assert_close(regular.grad, gradient(REGULAR))
