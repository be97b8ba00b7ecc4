"""Metadata of operations with symbolic sizes for which PyTorch's meta functions are not right for all sizes.

In the mode for all sizes, these meta functions ignore three conditions: whether `squeeze` drops a size of one, whether
a length is -1 and has to be inferred, and whether an index is negative or out of range. These conditions are decided
before the meta function runs, which constrains the symbols.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import guard_or_false

from thunder_core.tracing.capture.symbolic.all_sizes import decide_sizes_of_one
from thunder_core.tracing.capture.torch_facts.convolutions import CONVOLUTIONS, convolutions_for_all_sizes
from thunder_core.tracing.ir.sizes import hint_of

maximum: Any = torch.sym_max
minimum: Any = torch.sym_min
LENGTHS = frozenset({"size", "shape", "sizes"})  # arguments that are lengths of dimensions


def decide(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Decide the conditions on symbols that an operation's meta function assumes."""
    if operation.overloadpacket in DECISIONS:
        DECISIONS[operation.overloadpacket](*args)
    if operation.overloadpacket in VIEWS:
        decide_view(*args)
    schema = operation._schema.arguments
    keywords = ((argument, kwargs.get(argument.name)) for argument in schema)
    for argument, value in (*zip(schema, args, strict=False), *keywords):
        if argument.name in LENGTHS and isinstance(value, tuple | list):
            decide_lengths(value)


def decide_lengths(lengths: tuple[Any, ...] | list[Any]) -> None:
    """Decide whether lengths are negative. The value of a negative length is guarded, because only -1 is valid."""
    for length in lengths:
        if isinstance(length, torch.SymInt) and length < 0:
            int(length)


def decide_view(tensor: torch.Tensor, shape: object) -> None:
    """Decide that all sizes are one if a tensor is viewed without dimensions, because PyTorch only drops sizes that are
    known to be one.
    """
    if isinstance(shape, tuple | list) and not shape:
        for size in tensor.shape:
            bool(size == 1)


def decide_squeeze(tensor: torch.Tensor, dims: Any = None) -> None:
    """Decide which of the dimensions that `squeeze` may drop have one element."""
    for dim in range(tensor.dim()) if dims is None else (dims,) if isinstance(dims, int) else dims:
        if -tensor.dim() <= dim < tensor.dim():
            bool(tensor.shape[dim] == 1)


def decide_select(tensor: torch.Tensor, dim: int, index: object) -> None:
    """Decide whether an index is negative, and whether it is in range; raise PyTorch's `IndexError` if it is not."""
    if isinstance(index, torch.SymInt) and -tensor.dim() <= dim < tensor.dim():
        bool(index >= 0)
        is_in_range = [bool(-tensor.shape[dim] <= index), bool(index < tensor.shape[dim])]
        if not all(is_in_range):
            torch.empty([*map(hint_of, tensor.shape)], device="meta").select(dim, hint_of(index))


def decide_select_scatter(tensor: torch.Tensor, source: torch.Tensor, dim: int, index: object) -> None:
    """Decide the same as `decide_select` for the index of `select_scatter`."""
    decide_select(tensor, dim, index)


aten = torch.ops.aten
DECISIONS: dict[Any, Callable[..., None]] = {
    aten.squeeze: decide_squeeze,
    aten.squeeze_: decide_squeeze,
    aten.squeeze_copy: decide_squeeze,
    aten.select: decide_select,
    aten.select_copy: decide_select,
    aten.select_scatter: decide_select_scatter,
}

VIEWS = frozenset({aten.view, aten._unsafe_view})


def deciding(operation: Any) -> AbstractContextManager[Any]:
    """During the block, let an operation's meta function use the decisions of `decide`, and make no other decisions.

    In the mode for all sizes (`size_oblivious`), the meta function would not use decisions about a size that is an
    expression. For a convolution, the block replaces the functions with which PyTorch selects a kernel by sizes.
    """
    if operation.overloadpacket in CONVOLUTIONS:
        return convolutions_for_all_sizes()
    if operation.overloadpacket not in DECISIONS:
        return nullcontext()
    return decide_sizes_of_one()


def is_symbolic_slice(
    tensor: torch.Tensor, dim: int = 0, start: object = None, end: object = None, step: int = 1
) -> bool:
    """Whether a valid call of `aten.slice` has a symbolic start or end, or divides a symbolic size.

    PyTorch 2.11 creates an unbacked symbol for the size if the order of start and end is unknown, as in `x[-3:]`.
    """
    if not -tensor.dim() <= dim < tensor.dim() or step <= 0:
        return False
    return any(isinstance(number, torch.SymInt) for number in (start, end, tensor.shape[dim]))


def slice_dimension(
    tensor: torch.Tensor, dim: int = 0, start: object = None, end: object = None, step: int = 1
) -> torch.Tensor:
    """Return the part of a tensor between two indices, whose size is an expression of them."""
    shape, strides = list(tensor.shape), list(tensor.stride())
    size = shape[dim]
    first = 0 if start is None else _clamped_position(start, size)
    last = size if end is None else _clamped_position(end, size)
    length = last - first if guard_or_false(last >= first) else maximum(last - first, 0)
    offset = tensor.storage_offset() + first * strides[dim]
    shape[dim], strides[dim] = (length + step - 1) // step, strides[dim] * step
    return tensor.as_strided(shape, strides, offset)


def _clamped_position(position: Any, size: Any) -> Any:
    """Return an index as a position from the beginning of a dimension, clamped to its ends."""
    if type(position) is int and position == sys.maxsize:
        return size
    if position < 0:
        return maximum(position + size, 0)
    return position if guard_or_false(position <= size) else minimum(position, size)
