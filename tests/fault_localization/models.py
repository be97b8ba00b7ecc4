"""A model with layers of one shape, settings and state, in which every part may be wrong."""

from __future__ import annotations

from typing import Any

import torch


class Layers(torch.nn.Module):
    """Two layers of one shape, a scale and a flag.

    The model keeps a running mean and its latest output, and fills a cache.
    """

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.dropout = torch.nn.Dropout(0.5)
        self.scale, self.is_shifted = 0.5, False
        self.register_buffer("mean", torch.zeros(8))
        self.latest: torch.Tensor | None = None

    def forward(self, x: torch.Tensor, cache: list[Any] | None = None) -> dict[str, torch.Tensor]:
        """The results of both layers."""
        first = self.dropout(torch.tanh(self.first(x)) * self.scale)
        second = self.second(first) + (1 if self.is_shifted else 0)
        self.mean = self.mean * 0.9 + second.detach().mean(0)
        self.latest = first.detach()
        if cache is not None:
            cache[0] = torch.cat([cache[0], first.detach()])
        return {"first": first, "second": second}
