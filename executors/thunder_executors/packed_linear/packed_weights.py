"""Weights that are packed once, when they are first multiplied, and again after a write to them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from thunder_core.backend.fusion.prepared_weights import PreparedWeights
from thunder_executors.packed_linear.huge_pages import HUGE_PAGES

PANEL = 32  # the most columns of a panel; packed memory is padded to a multiple of this number of columns


@dataclass(eq=False)
class PackedWeights:
    """The packed weights of one kernel, for all programs of the process."""

    pack: Callable[..., Any]
    prepared: PreparedWeights[torch.Tensor] = field(default_factory=PreparedWeights)

    @classmethod
    def of(cls, pack: Callable[..., Any]) -> PackedWeights:
        """Return the only `PackedWeights` of a packing function in this process."""
        return _PACKED.setdefault(pack, cls(pack))

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        """Return a float32 weight [out, in] as panels of columns, which the kernel reads."""
        return self.prepared.form_of((weight,), partial(self._pack, weight))

    def _pack(self, weight: torch.Tensor) -> torch.Tensor:
        columns, depth = weight.shape
        memory = HUGE_PAGES.empty(-(-columns // PANEL) * PANEL * depth)
        self.pack(weight, memory, depth, columns, weight.stride(0))
        return memory


_PACKED: dict[Callable[..., Any], PackedWeights] = {}
