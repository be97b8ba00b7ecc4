"""Whole batches: what the tensors of a program within `torch.vmap` are beneath its levels, and back.

A level of `vmap` hides one dimension of a tensor. A whole batch has the dimensions of all levels first, those of the
outermost level before the others, and can be an operand of a sub-trace. Outside of `vmap` a tensor is its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder_core.capture.transform_levels import Level, is_wrapped

functorch: Any = torch._C._functorch


class Batches:
    """The levels of `vmap` that the program is in, the outermost first, and the tensors that they batch."""

    def __init__(self, acquisition: Any, levels: Sequence[Level]) -> None:
        self._call = acquisition.machine.call
        self._functorch = acquisition.recorder.levels.call
        self._levels = levels
        self.dimensions = len(levels)

    def beneath(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor that a level wraps, beneath all of them, with its batches where they lie."""
        while is_wrapped(tensor):
            tensor = functorch.get_unwrapped(tensor)
        return tensor

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the whole batch of a tensor, contiguous; one that a level does not batch is the same in all places."""
        for level in reversed(self._levels):
            value, dimension = self._functorch(functorch._unwrap_batched, (tensor, level.number), {})
            if dimension is None:
                row = self._call(torch.unsqueeze, value, 0)
                tensor = self._call(torch.Tensor.expand, row, level.batch_size, *[-1] * value.dim())
            else:
                tensor = self._moved(value, dimension, 0)
        return self._call(torch.Tensor.contiguous, tensor) if self._levels else tensor

    def batched(self, whole: torch.Tensor) -> torch.Tensor:
        """Return the tensor within the levels whose whole batch this is."""
        for level in self._levels:
            whole = self._functorch(functorch._add_batch_dim, (whole, 0, level.number), {})
        return whole

    def flag(self, predicate: torch.Tensor) -> torch.Tensor:
        """Return the whole batch of a tensor of one element, which has the dimensions of the levels alone."""
        return self.whole(self._call(torch.reshape, predicate, ()))

    def where(self, flag: torch.Tensor, result: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Return the whole batch that is one where the flag holds, and the other elsewhere."""
        ones = [None] * (result.dim() - self.dimensions)
        chosen: torch.Tensor = self._call(
            torch.where, self._call(torch.Tensor.__getitem__, flag, (..., *ones)), result, other
        )
        return chosen

    def with_slices_first(self, whole: torch.Tensor) -> torch.Tensor:
        """Return a whole batch with the first dimension of its tensors before those of the levels."""
        return self._moved(whole, self.dimensions, 0)

    def with_slices_within(self, stacked: torch.Tensor) -> torch.Tensor:
        """Return the whole batch of which this is the one with slices first."""
        return self._moved(stacked, 0, self.dimensions)

    def _moved(self, tensor: torch.Tensor, source: int, destination: int) -> torch.Tensor:
        return tensor if source == destination else self._call(torch.movedim, tensor, source, destination)
