"""Logical and physical tensors of a program within `torch.vmap`, in functorch's terms.

A level of `vmap` hides one dimension of a tensor: the program sees a logical tensor. The physical tensor starts with
the batch dimensions of all levels, the outermost level first, and can be an operand of a sub-trace. Outside of `vmap`,
the logical and the physical tensor are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from thunder_core.frontend.acquire.outside.recording import Recording
from thunder_core.tracing.capture.transform_levels import Level, is_wrapped

functorch: Any = torch._C._functorch


class BatchedTensors:
    """Converts tensors between the logical and the physical form at the active `levels` of `vmap`, outermost first.

    `dimensions` is the number of batch dimensions of a physical tensor.
    """

    def __init__(self, run: Recording, levels: Sequence[Level]) -> None:
        self._call = run.machine.call
        self._call_functorch = run.recorder.levels.call
        self._levels = levels
        self.dimensions = len(levels)

    def unwrap(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the innermost wrapped tensor, whose batch dimensions may be at any position."""
        while is_wrapped(tensor):
            tensor = functorch.get_unwrapped(tensor)
        return tensor

    def physical(self, logical: torch.Tensor) -> torch.Tensor:
        """Return the contiguous physical tensor, expanded along the dimension of each level that does not batch it."""
        tensor = logical
        for level in reversed(self._levels):
            value, dimension = self._call_functorch(functorch._unwrap_batched, (tensor, level.number), {})
            if dimension is None:
                row = self._call(torch.unsqueeze, value, 0)
                tensor = self._call(torch.Tensor.expand, row, level.batch_size, *[-1] * value.dim())
            else:
                tensor = self._move_dimension(value, dimension, 0)
        return self._call(torch.Tensor.contiguous, tensor) if self._levels else tensor

    def logical(self, physical: torch.Tensor) -> torch.Tensor:
        """Return the logical tensor of a physical tensor."""
        tensor = physical
        for level in self._levels:
            tensor = self._call_functorch(functorch._add_batch_dim, (tensor, 0, level.number), {})
        return tensor

    def physical_predicate(self, predicate: torch.Tensor) -> torch.Tensor:
        """Return the physical tensor of a predicate with a single element, which has only batch dimensions."""
        return self.physical(self._call(torch.reshape, predicate, ()))

    def where(self, predicate: torch.Tensor, result: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Return `torch.where` of physical tensors, where the predicate has only batch dimensions."""
        trailing_dimensions = [None] * (result.dim() - self.dimensions)
        widened = self._call(torch.Tensor.__getitem__, predicate, (..., *trailing_dimensions))
        selected: torch.Tensor = self._call(torch.where, widened, result, other)
        return selected

    def with_slices_first(self, physical: torch.Tensor) -> torch.Tensor:
        """Return the physical tensor, with its first logical dimension moved before the batch dimensions."""
        return self._move_dimension(physical, self.dimensions, 0)

    def with_batches_first(self, stacked: torch.Tensor) -> torch.Tensor:
        """Return the physical tensor of a tensor whose first logical dimension comes before the batch dimensions."""
        return self._move_dimension(stacked, 0, self.dimensions)

    def _move_dimension(self, tensor: torch.Tensor, source: int, destination: int) -> torch.Tensor:
        return tensor if source == destination else self._call(torch.movedim, tensor, source, destination)
