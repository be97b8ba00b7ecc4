"""Overlap of tensors in memory, which prologues ask for where a program writes to what it was given."""

from __future__ import annotations

from typing import Any

import torch

from thunder_core.tracing.library.extent import extent

Overlaps = tuple[tuple[tuple[int, int], ...], ...]


def span(tensor: torch.Tensor) -> int:
    """The bytes from a tensor's first element to the end of its last one."""
    return extent(tensor.shape, tensor.stride()) * tensor.element_size()


def overlaps(tensors: tuple[torch.Tensor, ...]) -> Overlaps:
    """The groups of tensors whose spans of memory overlap: for each tensor its place and its distance in bytes.

    Distances are from the first tensor in the order of memory. What has no memory overlaps with nothing.
    """
    dense = [tensor.layout is torch.strided for tensor in tensors]
    pointers = [tensor.data_ptr() if one else 0 for tensor, one in zip(tensors, dense, strict=True)]
    return _groups(pointers, [span(tensor) if one else 0 for tensor, one in zip(tensors, dense, strict=True)])


def _groups(pointers: list[int], spans: list[int]) -> Overlaps:
    groups: list[list[tuple[int, int]]] = []
    start = end = before = -1
    for pointer, size, place in sorted(zip(pointers, spans, range(len(spans)), strict=True)):
        if not pointer or not size:
            continue
        if pointer >= end:
            start, before = pointer, place
            end = pointer + size
            continue
        if before >= 0:  # the first one that overlaps with something
            groups.append([(before, 0)])
            before = -1
        groups[-1].append((place, pointer - start))
        end = max(end, pointer + size)
    return tuple(map(tuple, groups))


def overlap_as(
    prologue: Any, tensors: tuple[torch.Tensor, ...], expected: Overlaps, sized: tuple[int, ...] = ()
) -> bool:
    """Whether strided tensors overlap as expected, of known sizes and strides but for those at the places `sized`.

    Where they lie is remembered: while that stays the same, as parameters and buffers do, so does the answer.
    """
    pointers = [tensor.data_ptr() for tensor in tensors]
    before, spans = prologue.__dict__.get("memory") or (None, None)
    if spans is None:
        spans = [span(tensor) for tensor in tensors]
    elif sized:
        known, spans = spans, spans.copy()
        for place in sized:
            spans[place] = span(tensors[place])
        before = before if known == spans else None
    if before == pointers:
        return True
    if _groups(pointers, spans) != expected:
        return False
    prologue.memory = pointers, spans  # as one: other threads read both
    return True
