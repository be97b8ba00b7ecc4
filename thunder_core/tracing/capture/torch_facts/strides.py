"""Strides of dense tensors: contiguous strides, channels_last strides, and TensorIterator's strides."""

from __future__ import annotations

from collections.abc import Sequence

Strides = tuple[int, ...]


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements fill a range of memory without gaps or overlap (`is_non_overlapping_and_dense`)."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def dense_strides(shape: Sequence[int], order: Sequence[int] | None = None, *, least: int = 1) -> Strides:
    """Return the strides of a dense tensor whose dimensions are in this order in memory, slowest first.

    A dimension counts as at least `least` elements: one for tensors that PyTorch calls contiguous, and zero if
    TensorIterator lays out a tensor without elements in its own order.
    """
    strides = [0] * len(shape)
    step = 1
    for dim in reversed(range(len(shape)) if order is None else order):
        strides[dim] = step
        step *= max(shape[dim], least)
    return tuple(strides)


CHANNELS_LAST = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}


def is_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether strides are in channels_last order (`is_channels_last_strides`), also in dimensions of size one."""
    order = CHANNELS_LAST.get(len(shape))
    if order is None or not strides[1]:
        return False
    least = 0
    for dim in reversed(order):
        if not shape[dim] or strides[dim] < least or (dim == 0 and least == strides[1]):
            return False
        least = strides[dim] * max(shape[dim], 1)
    return True


def order_in_memory(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> list[int]:
    """Return the dimensions in TensorIterator's order (`reorder_dimensions`), slowest first.

    The operands' strides are for the broadcast shape: zero in expanded dimensions.
    """
    order = list(range(len(shape)))[::-1]
    for index in range(1, len(order)):
        at = index
        for before in reversed(range(index)):
            compared = _compare_dimensions(order[before], order[at], shape, operands)
            if compared < 0:
                break
            if compared > 0:
                order[before], order[at] = order[at], order[before]
                at = before
    return order[::-1]


def _compare_dimensions(first: int, second: int, shape: Sequence[int], operands: Sequence[Sequence[int]]) -> int:
    """Return 1 if the first dimension is slower, -1 if the second is, and 0 if no operand decides."""
    for strides in operands:
        if not strides[first] or not strides[second]:
            continue
        if strides[first] != strides[second]:
            return 1 if strides[first] > strides[second] else -1
        if shape[first] > shape[second]:
            return 1
    return 0
