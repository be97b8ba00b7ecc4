"""What the forward of a `torch.autograd.Function` saves is what its backward reads, and is computed once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder

COUNT = torch.zeros(4)


class Returned(torch.autograd.Function):
    """Returns a saved tensor as the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.sin())
        return x + 1

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return ctx.saved_tensors[0]


class GivenBack(Returned):
    """Returns its argument as the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x + 1


class Dropped(torch.autograd.Function):
    """Dropout whose backward uses the mask of the forward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = (torch.rand_like(x) > 0.5).to(x.dtype)
        ctx.save_for_backward(mask)
        return x * mask * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.saved_tensors[0] * 2


class DroppedByLayer(Returned):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        dropped = nn.functional.dropout(x, 0.5)
        ctx.save_for_backward(dropped)
        return dropped * 3


class DrawnTwice(torch.autograd.Function):
    """Draws in the forward and in the backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.noise = torch.rand(4)
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * torch.rand(4) + ctx.noise


class Counted(torch.autograd.Function):
    """Counts its calls in a tensor that is no argument."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        COUNT.add_(1)
        ctx.save_for_backward(x.sin())
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.saved_tensors[0]


def step(program: Any, x: Tensor) -> tuple[Tensor, ...]:
    """Return the result, the gradient, the next random number, and the count after a step."""
    COUNT.zero_()
    x = x.clone().requires_grad_()
    torch.manual_seed(0)
    result = program(x)
    result.sum().backward()
    assert x.grad is not None
    return result.detach(), x.grad, torch.rand(1), COUNT.clone()


@pytest.mark.parametrize("kind", [Returned, GivenBack, Dropped, DroppedByLayer, DrawnTwice, Counted])
@pytest.mark.parametrize("executors", [("torch",), ("inductor", "torch")], ids="+".join)
@pytest.mark.parametrize("is_followed", [False, True])
def test_steps_equal_eagers(kind: Any, executors: tuple[str, ...], is_followed: bool) -> None:
    def program(x: Tensor) -> Any:
        return kind.apply(x * 1) * torch.rand(4) if is_followed else kind.apply(x) * 2

    compiled = thunder.jit(program, executors=executors)
    for value in (1.0, 2.0, 3.0):
        x = torch.full((4,), value)
        torch.testing.assert_close(step(compiled, x), step(program, x))
