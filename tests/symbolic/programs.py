"""Programs over sizes, each a function of one tensor of three dimensions of which the last is eight."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {}
FEATURES = 8


def program(function: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
    """Register a program by its name."""
    PROGRAMS[function.__name__] = function
    return function


@program
def writes_to_a_part(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 0] = 1.0
    y += 1
    return y


@program
def returns_views(x: torch.Tensor) -> Any:
    return x.transpose(1, 2), x[:, 1:], x.view(-1, FEATURES), x.flatten(), x.unsqueeze(0)


@program
def joins_and_parts(x: torch.Tensor) -> Any:
    return torch.cat([x, x[:, :1]], 1), torch.stack([x, x]), x.chunk(2, 2), x.split(3, 1)


@program
def pads(x: torch.Tensor) -> Any:
    return functional.pad(x, (1, 2, 0, 3)), functional.pad(x, (0, 0, x.shape[1], 0))


@program
def makes_tensors_of_sizes(x: torch.Tensor) -> Any:
    n = x.shape[1]
    made = torch.arange(n), torch.arange(1, n + 1, 2), torch.zeros(n, n).tril(), torch.ones(x.shape) * n
    return *made, x / n, x * n**2


@program
def reduces(x: torch.Tensor) -> Any:
    spread = x.var(1) if x.shape[1] > 1 else x
    return x.mean(1), x.sum((0, 1)), x.amax(-1), spread, x.softmax(1), x.argmax(1), x.cumsum(1)


@program
def branches(x: torch.Tensor) -> torch.Tensor:
    if x.shape[1] > 6:
        return x + 1
    while x.shape[0] < 2:
        x = torch.cat([x, x])
    return x


@program
def indexes(x: torch.Tensor) -> Any:
    backwards = torch.arange(x.shape[1] - 1, -1, -1)
    places = backwards[None, :, None].expand(x.shape)
    chosen = x[:, backwards], x.index_select(1, backwards), x.gather(1, places)
    return *chosen, x[0], x[:, -1], x[..., :4], x.flip(1), x.roll(1, 1)


@program
def attends(x: torch.Tensor) -> torch.Tensor:
    heads = x.view(x.size(0), -1, 2, 4).transpose(1, 2)
    attended = functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
    return attended.transpose(1, 2).reshape(x.shape)


@program
def normalizes(x: torch.Tensor) -> Any:
    return functional.layer_norm(x, (FEATURES,)), functional.rms_norm(x, (FEATURES,))


@program
def loops_over_a_size(x: torch.Tensor) -> Any:
    total: Any = 0
    for index in range(x.shape[0]):
        total = total + x[index]
    return total


@program
def returns_sizes(x: torch.Tensor) -> Any:
    sizes = x.shape, x.shape[1:], list(x.shape), x.numel(), x.size(), x.stride(), x.dim(), len(x)
    return *sizes, slice(0, x.shape[1]), x.shape + torch.Size([x.shape[0]])


@program
def formats_sizes(x: torch.Tensor) -> Any:
    return f"{x.shape[1]}", {x.shape[1]: "size"}, str(x.shape[0])


@program
def takes_the_smaller(x: torch.Tensor) -> Any:
    return x[:, : min(x.shape[1], 4)], x[:, max(0, x.shape[1] - 3) :], x.narrow(1, 0, (x.shape[1] + 1) // 2)


@program
def multiplies(x: torch.Tensor) -> Any:
    flat = x.reshape(-1, FEATURES)
    return x @ x.transpose(1, 2), torch.einsum("bij,bkj->bik", x, x), torch.bmm(x, x.mT), flat.T @ flat


@program
def computes_with_sizes(x: torch.Tensor) -> Any:
    n = x.shape[1]
    numbers = divmod(n, 3), n % 4, -n, n // 2, round(n / 2), float(n), n / 4, abs(n - 6)
    return *numbers, n == 5, isinstance(n, int), type(n) is int, x * n


@program
def repeats(x: torch.Tensor) -> Any:
    return x.repeat(1, 2, 1), x.expand(2, *x.shape), x.repeat_interleave(2, 1), x.masked_fill(x > 0, 0.0), x.unbind(2)
