"""Check which tensors overlap in memory. Prologues do so if a program writes to its inputs."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from thunder_core.tracing.library.extent import extent

Overlaps = tuple[tuple[tuple[int, int], ...], ...]
MAX_MOVING = 8  # the number of moving tensors up to which their new addresses are compared one by one


def span(tensor: torch.Tensor) -> int:
    """Return the bytes from a tensor's first element to the end of its last element."""
    return extent(tensor.shape, tensor.stride()) * tensor.element_size()


def quick_span(tensor: torch.Tensor) -> int:
    """Return the span of a tensor with constant sizes; for a contiguous tensor, PyTorch computes it in C++."""
    return tensor.nbytes if tensor.is_contiguous() else span(tensor)


def overlaps(tensors: tuple[torch.Tensor, ...]) -> Overlaps:
    """Return the groups of tensors whose memory overlaps; a tensor is given by its position and its distance in bytes.

    The distance is measured from the group's first tensor in memory. Tensors without memory overlap with no tensor.
    """
    dense = [tensor.layout is torch.strided for tensor in tensors]
    pointers = [tensor.data_ptr() if is_dense else 0 for tensor, is_dense in zip(tensors, dense, strict=True)]
    return _groups(pointers, [span(tensor) if is_dense else 0 for tensor, is_dense in zip(tensors, dense, strict=True)])


def _groups(pointers: list[int], spans: list[int]) -> Overlaps:
    groups: list[list[tuple[int, int]]] = []
    start = end = before = -1
    for pointer, size, index in sorted(zip(pointers, spans, range(len(spans)), strict=True)):
        if not pointer or not size:
            continue
        if pointer >= end:
            start, before = pointer, index
            end = pointer + size
            continue
        if before >= 0:  # the first tensor that overlaps with another
            groups.append([(before, 0)])
            before = -1
        groups[-1].append((index, pointer - start))
        end = max(end, pointer + size)
    return tuple(map(tuple, groups))


@dataclass(frozen=True)
class Memory:
    """The addresses and spans of tensors that overlap as expected.

    `moving` are the positions of the tensors that were elsewhere in earlier calls, such as the token of a generation.
    They overlap with no tensor. All other tensors lie in the ranges of memory from `starts` to `ends`, in order.
    """

    pointers: list[int]
    spans: list[int]
    moving: tuple[int, ...] = ()
    starts: Sequence[int] = ()
    ends: Sequence[int] = ()

    def with_moved(self, pointers: list[int], spans: list[int]) -> Memory | None:
        """Return the memory after moves of the moving tensors; None if the overlaps must be compared again."""
        expected_pointers, expected_spans = self.pointers.copy(), self.spans.copy()
        for index in self.moving:
            expected_pointers[index], expected_spans[index] = pointers[index], spans[index]
        if expected_pointers != pointers or expected_spans != spans:
            return None
        ranges = [(pointers[index], pointers[index] + spans[index]) for index in self.moving if pointers[index]]
        if not all(map(self._is_free, ranges)) or any_overlap(ranges):
            return None
        return Memory(pointers, spans, self.moving, self.starts, self.ends)

    def _is_free(self, memory_range: tuple[int, int]) -> bool:
        """Whether no tensor that stays at its address lies in a range of memory."""
        start, end = memory_range
        after = bisect_right(self.starts, start)
        return (not after or self.ends[after - 1] <= start) and (after == len(self.starts) or end <= self.starts[after])


def overlap_as(
    prologue: Any, tensors: tuple[torch.Tensor, ...], expected: Overlaps, sized: tuple[int, ...] = ()
) -> bool:
    """Whether strided tensors overlap as expected. Guards have checked all sizes, except at the positions `sized`.

    The addresses are cached on the prologue. While they do not change, as for parameters and buffers, the result does
    not change. If only tensors have moved that moved before, only these are compared with the others.
    """
    pointers = [tensor.data_ptr() for tensor in tensors]
    before: Memory | None = prologue.__dict__.get("memory")
    if before is None:
        spans = [quick_span(tensor) for tensor in tensors]
    else:
        spans = before.spans
        if sized:
            spans = spans.copy()
            for index in sized:
                spans[index] = quick_span(tensors[index])
        if before.pointers == pointers and before.spans == spans:
            return True
        if before.moving and (memory := before.with_moved(pointers, spans)) is not None:
            prologue.memory = memory
            return True
    if _groups(pointers, spans) != expected:
        return False
    prologue.memory = memory_of(pointers, spans, expected, before)  # one object: other threads read all parts
    return True


def memory_of(pointers: list[int], spans: list[int], overlapping: Overlaps, before: Memory | None) -> Memory:
    """Return the memory of tensors whose overlaps are known; the tensors that moved since `before` are moving."""
    if before is None:
        return Memory(pointers, spans)
    places = zip(pointers, spans, strict=True), zip(before.pointers, before.spans, strict=True)
    moved = {index for index, (now, earlier) in enumerate(zip(*places, strict=True)) if now != earlier}
    moving = tuple(sorted(moved.union(before.moving)))
    in_groups = {index for group in overlapping for index, _ in group}
    if len(moving) > MAX_MOVING or not in_groups.isdisjoint(moving):
        return Memory(pointers, spans)
    staying = [(pointers[index], spans[index]) for index in range(len(pointers)) if index not in moving]
    ranges = list(merge_ranges((start, start + size) for start, size in staying if start and size))
    return Memory(pointers, spans, moving, [start for start, _ in ranges], [end for _, end in ranges])


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield ranges of memory in order, each without overlaps with another."""
    start = end = 0
    for next_start, next_end in sorted(ranges):
        if next_start >= end:
            if end:
                yield start, end
            start = next_start
        end = max(end, next_end)
    if end:
        yield start, end


def any_overlap(ranges: list[tuple[int, int]]) -> bool:
    """Whether two of a few ranges of memory overlap."""
    ordered = sorted(ranges)
    return any(start < end for (_, end), (start, _) in pairwise(ordered))


def shared_storages(*tensors: torch.Tensor) -> tuple[int, ...]:
    """Return, for each tensor, the position of the first tensor with the same storage."""
    with torch._C.DisableTorchFunction():
        storages = [tensor.untyped_storage()._cdata if tensor.layout is torch.strided else 0 for tensor in tensors]
    return tuple(map(storages.index, storages))
