"""Strides of dense tensors: contiguous ones, those of channels_last, and those that TensorIterator chooses."""

from __future__ import annotations

from collections.abc import Sequence

Strides = tuple[int, ...]


def is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements fill a stretch of memory, each place once (`is_non_overlapping_and_dense`)."""
    expected = 1
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size != 1):
        if stride != expected:
            return False
        expected *= size
    return True


def dense_strides(shape: Sequence[int], order: Sequence[int] | None = None, *, least: int = 1) -> Strides:
    """The strides of a dense tensor whose dimensions lie in memory in this order, the slowest first.

    A dimension takes the room of so many elements at the `least`: of one where PyTorch calls a tensor contiguous, and
    of none where TensorIterator lays out a tensor without elements in an order of its own.
    """
    strides = [0] * len(shape)
    step = 1
    for place in reversed(range(len(shape)) if order is None else order):
        strides[place] = step
        step *= max(shape[place], least)
    return tuple(strides)


CHANNELS_LAST = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}


def is_channels_last(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether strides are in the order of channels_last (`is_channels_last_strides`), in dimensions of size one too."""
    order = CHANNELS_LAST.get(len(shape))
    if order is None or not strides[1]:
        return False
    least = 0
    for place in reversed(order):
        if not shape[place] or strides[place] < least or (place == 0 and least == strides[1]):
            return False
        least = strides[place] * max(shape[place], 1)
    return True


def order_in_memory(shape: Sequence[int], operands: Sequence[Sequence[int]]) -> list[int]:
    """The dimensions as TensorIterator orders them (`reorder_dimensions`), the slowest first.

    The operands' strides are those of the broadcast shape: zero where they are expanded.
    """
    order = list(range(len(shape)))[::-1]
    for place in range(1, len(order)):
        at = place
        for before in reversed(range(place)):
            compared = _compared(order[before], order[at], shape, operands)
            if compared < 0:
                break
            if compared > 0:
                order[before], order[at] = order[at], order[before]
                at = before
    return order[::-1]


def _compared(first: int, second: int, shape: Sequence[int], operands: Sequence[Sequence[int]]) -> int:
    """1 where the first dimension is the slower one, -1 where the second is, 0 where no operand tells."""
    for strides in operands:
        if not strides[first] or not strides[second]:
            continue
        if strides[first] != strides[second]:
            return 1 if strides[first] > strides[second] else -1
        if shape[first] > shape[second]:
            return 1
    return 0
