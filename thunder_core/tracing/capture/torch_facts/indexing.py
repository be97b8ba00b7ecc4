"""The strides of results of tensor indexing; PyTorch's meta function ignores the indices.

The computation follows PyTorch's kernels (TensorAdvancedIndexing.cpp). The indexed tensor has strides of zero in the
indexed dimensions, and TensorIterator orders the result by this tensor and the indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch

from thunder_core.tracing.capture.torch_facts.layouts import iterator_strides
from thunder_core.tracing.capture.torch_facts.strides import Strides

MASKS = frozenset({torch.bool, torch.uint8})  # the number of results depends on values, so the kernels have already run


def indexing_strides(args: tuple[Any, ...], kwargs: dict[str, Any], result: torch.Tensor) -> Strides | None:
    """Return the strides of a tensor that is indexed by others."""
    tensor, given_indices = args
    with no_dispatch():
        indices = with_columns(given_indices, result)
        if indices is None:
            return None
        bare = [index if index is None else _without_data(index) for index in indices]
        return iterator_strides(
            read_by_index(_without_data(tensor), bare, on_gpu=tensor.device.type == "cuda"), result.shape
        )


def with_columns(indices: Sequence[torch.Tensor | None], result: torch.Tensor) -> Sequence[torch.Tensor | None] | None:
    """Return indices with a vector for each dimension of a mask, as in kernels; None if there are further indices."""
    present = [index for index in indices if index is not None]
    if not any(index.dtype in MASKS for index in present):
        return indices
    if len(present) > 1 or not present[0].dim():
        return None
    position = next(position for position, index in enumerate(indices) if index is not None)
    column = torch.empty_strided((result.shape[position],), (1,), dtype=torch.int64, device="meta")
    return [*indices[:position], *[column] * present[0].dim(), *indices[position + 1 :]]


def read_by_index(
    tensor: torch.Tensor, given_indices: Sequence[torch.Tensor | None], *, on_gpu: bool = False
) -> list[torch.Tensor]:
    """Return a tensor and its indices in the shape of the result, with strides of zero where it is indexed.

    Kernels for the GPU need indices with equal layouts.
    """
    positions = [position for position, index in enumerate(given_indices) if index is not None]
    indices = torch.broadcast_tensors(*(given_indices[position] for position in positions))  # type: ignore[no-untyped-call]
    if positions != list(range(positions[0], positions[-1] + 1)):
        tensor = tensor.permute(
            [*positions, *(position for position in range(tensor.dim()) if position not in positions)]
        )
        positions = list(range(len(positions)))
    before, after = positions[0], tensor.dim() - positions[-1] - 1
    shape, strides = list(tensor.shape), list(tensor.stride())
    shape[positions[0] : positions[-1] + 1] = indices[0].shape
    strides[positions[0] : positions[-1] + 1] = [0] * indices[0].dim()
    placed = [index.reshape([1] * before + list(index.shape) + [1] * after) for index in indices]
    if on_gpu and len({index.stride() for index in placed}) > 1:
        placed = [index.contiguous() for index in placed]
    return [tensor.as_strided(shape, strides), *placed]


def _without_data(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
