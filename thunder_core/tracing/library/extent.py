"""The extent of a tensor in memory."""

from __future__ import annotations

from collections.abc import Sequence


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements from the first to the last element of a strided tensor in memory, inclusive."""
    return 0 if 0 in shape else 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
