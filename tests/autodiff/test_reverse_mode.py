"""Reverse mode adds the gradients of a tensor in the same order as eager, bit by bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import thunder_core as thunder

SHAPE = (3, 4, 5)


def twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x, torch.vstack([x, x]).var(0), x * x


def attended(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.nn.functional.scaled_dot_product_attention(x, x, x), x.exp()


def normed(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.nn.functional.normalize(x), x @ x.mT, x.cumsum(0) * x


@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("program", [twice, attended, normed])
def test_gradients_are_accumulated_in_the_order_of_eager(program: Callable[..., object], cache: str) -> None:
    """In bfloat16 the order matters: autograd rounds after each summand, also for a tensor that a call uses twice."""

    def rounded(x: torch.Tensor) -> object:
        return program((x * 3).to(torch.bfloat16))

    gradients = []
    for function in (rounded, thunder.jit(rounded, cache=cache, executors=("torch",))):
        x = torch.randn(SHAPE, generator=torch.Generator().manual_seed(1)).requires_grad_()
        ends = [end.double().square().mean() * weight for weight, end in enumerate(function(x), 1)]
        gradients.append(torch.autograd.grad(sum(ends, start=torch.zeros(())), x)[0])
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=0)
