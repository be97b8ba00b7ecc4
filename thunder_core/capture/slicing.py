"""The metadata of slices between symbolic places, as expressions of the places.

PyTorch's own function has a size that nothing computes where it does not know whether a place is negative.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false


def is_between_symbols(args: Any, kwargs: Any) -> bool:
    """Whether a call of `aten.slice` begins or ends at a symbolic place."""
    return any(isinstance(place, torch.SymInt) for place in (*args[2:4], kwargs.get("start"), kwargs.get("end")))


def sliced(tensor: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> torch.Tensor:
    """The part of a tensor between two places. Whether a place is negative is decided, which constrains its symbols."""
    shape, strides = list(tensor.shape), list(tensor.stride())
    size = shape[dim]
    first = 0 if start is None else _place(start, size)
    last = size if end is None else _place(end, size)
    length = last - first if guard_or_false(last >= first) else torch.sym_max(last - first, 0)
    offset = tensor.storage_offset() + first * strides[dim]
    shape[dim], strides[dim] = (length + step - 1) // step, strides[dim] * step
    return tensor.as_strided(shape, strides, offset)


def _place(place: Any, size: Any) -> Any:
    """A place within a dimension, counted from its beginning: places outside of it are at its ends."""
    if type(place) is int and place == sys.maxsize:
        return size
    if place < 0:
        return torch.sym_max(place + size, 0)
    return place if guard_or_false(place <= size) else torch.sym_min(place, size)
