"""Random programs over tensors of a few shapes: arithmetic, views, reductions, and several results, some unused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

UNARY: tuple[Callable[[torch.Tensor], Any], ...] = (
    torch.sin,
    torch.tanh,
    functional.gelu,
    functional.silu,
    lambda x: x * 0.5 + 1,
    lambda x: x.transpose(0, 1),
    lambda x: x.reshape(-1).view(x.shape),
    lambda x: x.flip(0),
    lambda x: x.softmax(-1),
    lambda x: functional.layer_norm(x, x.shape[-1:]),
    lambda x: x - x.mean(0, keepdim=True),
    lambda x: x.sum(-1, keepdim=True).expand_as(x),
    lambda x: x.detach() * 2,
    lambda x: x.clamp(-1, 1),
    lambda x: x.roll(1, 0),
    lambda x: torch.cat([x[1:], x[:1]]),
    lambda x: torch.stack(x.unbind(1), 1),
    lambda x: x.contiguous(),
    lambda x: x.masked_fill(x > 1, 0.5),
    lambda x: x.cumsum(0) / 4,
    lambda x: x.float(),
    lambda x: functional.dropout(x, 0.3),
    lambda x: x[x.argsort(0)[:, 0]],
)
BINARY: tuple[Callable[[torch.Tensor, torch.Tensor], Any], ...] = (
    torch.add,
    torch.mul,
    torch.sub,
    torch.maximum,
    torch.matmul,
    lambda x, y: torch.where(x > y, x, y * 2),
    lambda x, y: functional.linear(x, y, y[0]),
    lambda x, y: torch.einsum("ij,jk->ik", x, y),
    lambda x, y: x.addmm(x, y),
    lambda x, y: torch.lerp(x, y, 0.3),
    lambda x, y: x / (y.square() + 1),
    lambda x, y: functional.scaled_dot_product_attention(x[None, None], y[None, None], y[None, None])[0, 0],
)


def program(seed: int, size: int = 4, lines: int = 9) -> Callable[..., tuple[torch.Tensor, ...]]:
    """A function of three square tensors that returns some of its intermediate results."""
    draw = random.Random(seed)
    steps: list[tuple[Callable[..., Any], tuple[int, ...]]] = []
    for index in range(3, 3 + lines):
        if draw.random() < 0.55:
            steps.append((draw.choice(UNARY), (draw.randrange(index),)))
        else:
            steps.append((draw.choice(BINARY), (draw.randrange(index), draw.randrange(index))))
    returned = draw.sample(range(3 + lines), 4)
    off = draw.randrange(3, 3 + lines) if draw.random() < 0.3 else None

    def run(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = list(inputs)
        for index, (function, arguments) in enumerate(steps, 3):
            with torch.set_grad_enabled(index != off):
                values.append(function(*(values[number] for number in arguments)))
        return tuple(values[number] for number in returned)

    return run
