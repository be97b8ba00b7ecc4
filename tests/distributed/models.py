"""Small models for parallel training: with tied, frozen, unused and uneven parameters, and with buffers."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A layer with a residual connection, whose sizes two ranks cannot divide."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(6, dtype=dtype)
        self.up = nn.Linear(6, 7, dtype=dtype)
        self.down = nn.Linear(7, 6, bias=False, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.down(torch.tanh(self.up(self.norm(x))))
        return result


class Layers(nn.Module):
    """A token table that is tied to the last layer, blocks, a frozen layer, one without use, and a buffer."""

    def __init__(self, dtype: torch.dtype = torch.float64, layers: int = 2, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(11, 6, dtype=dtype)
        self.layers = nn.ModuleList(Block(dtype) for _ in range(layers))
        self.frozen = nn.Linear(6, 6, dtype=dtype).requires_grad_(False)
        self.unused = nn.Linear(3, 3, dtype=dtype)
        self.head = nn.Linear(6, 11, bias=False, dtype=dtype)
        self.head.weight = self.table.weight
        self.register_buffer("shift", torch.full((6,), 0.25 + seed, dtype=dtype))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) + self.shift
        for layer in self.layers:
            x = layer(x)
        result: Tensor = self.head(self.frozen(x))
        return result


class Normalized(nn.Module):
    """A convolution, and a batch normalization whose statistics are buffers that each call writes."""

    def __init__(self, dtype: torch.dtype = torch.float64, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.convolution = nn.Conv1d(2, 3, 3, dtype=dtype)
        self.norm = nn.BatchNorm1d(3, dtype=dtype)
        self.scale = nn.Parameter(torch.ones(3, 1, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = (self.norm(self.convolution(x)) * self.scale).relu()
        return result


class Clipping(nn.Module):
    """A model that writes to its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data.clamp_(max=0.5)
        return x * self.weight


def tokens(step: int, rank: int) -> Tensor:
    """The tokens of a step on a rank."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randint(0, 11, (3, 4), generator=generator)
