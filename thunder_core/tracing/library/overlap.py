"""Check which tensors overlap in memory. Prologues do so if a program writes to its inputs."""

from __future__ import annotations

from typing import Any

import torch

from thunder_core.tracing.library.extent import extent

Overlaps = tuple[tuple[tuple[int, int], ...], ...]


def span(tensor: torch.Tensor) -> int:
    """Return the bytes from a tensor's first element to the end of its last element."""
    return extent(tensor.shape, tensor.stride()) * tensor.element_size()


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


def overlap_as(
    prologue: Any, tensors: tuple[torch.Tensor, ...], expected: Overlaps, sized: tuple[int, ...] = ()
) -> bool:
    """Whether strided tensors overlap as expected. Guards have checked all sizes, except at the positions `sized`.

    The addresses are cached on the prologue: while they do not change, the result does not change.
    """
    pointers = [tensor.data_ptr() for tensor in tensors]
    before, spans = prologue.__dict__.get("memory") or (None, None)
    if spans is None:
        spans = [span(tensor) for tensor in tensors]
    elif sized:
        contiguous_spans, spans = spans, spans.copy()
        for index in sized:
            spans[index] = span(tensors[index])
        before = before if contiguous_spans == spans else None
    if before == pointers:
        return True
    if _groups(pointers, spans) != expected:
        return False
    prologue.memory = pointers, spans  # one tuple, so that other threads read matching values
    return True


def shared_storages(*tensors: torch.Tensor) -> tuple[int, ...]:
    """Return, for each tensor, the position of the first tensor with the same storage."""
    with torch._C.DisableTorchFunction():
        storages = [tensor.untyped_storage()._cdata if tensor.layout is torch.strided else 0 for tensor in tensors]
    return tuple(map(storages.index, storages))
