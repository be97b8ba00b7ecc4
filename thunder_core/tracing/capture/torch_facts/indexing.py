"""The strides of what is indexed by tensors, where PyTorch's function for metadata does not look at the indices.

The way is that of PyTorch's kernels (TensorAdvancedIndexing.cpp): what is indexed is seen with strides of zero in the
dimensions that are indexed, and TensorIterator orders the result by this and by the indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch

from thunder_core.tracing.capture.torch_facts.layouts import iterated
from thunder_core.tracing.capture.torch_facts.strides import Strides

MASKS = frozenset({torch.bool, torch.uint8})  # there are as many results as values say, so that kernels have been run


def indexed(args: Any, kwargs: Any, result: torch.Tensor) -> Strides | None:
    """The strides of a tensor that is indexed by others."""
    tensor, given = args
    with no_dispatch():
        indices = with_columns(given, result)
        if indices is None:
            return None
        bare = [index if index is None else _bare(index) for index in indices]
        return iterated(read_by_index(_bare(tensor), bare, on_gpu=tensor.device.type == "cuda"), result.shape)


def with_columns(indices: Sequence[torch.Tensor | None], result: torch.Tensor) -> Sequence[torch.Tensor | None] | None:
    """Indices with a vector for each dimension of a mask, as kernels replace it; None where it is not the only one."""
    there = [index for index in indices if index is not None]
    if not any(index.dtype in MASKS for index in there):
        return indices
    if len(there) > 1 or not there[0].dim():
        return None
    place = next(place for place, index in enumerate(indices) if index is not None)
    column = torch.empty_strided((result.shape[place],), (1,), dtype=torch.int64, device="meta")
    return [*indices[:place], *[column] * there[0].dim(), *indices[place + 1 :]]


def read_by_index(
    tensor: torch.Tensor, given: Sequence[torch.Tensor | None], *, on_gpu: bool = False
) -> list[torch.Tensor]:
    """A tensor and its indices in the shape of the result, the tensor with strides of zero where it is indexed.

    Kernels for the GPU have indices that are laid out alike.
    """
    there = [place for place, index in enumerate(given) if index is not None]
    indices = torch.broadcast_tensors(*(given[place] for place in there))  # type: ignore[no-untyped-call]
    if there != list(range(there[0], there[-1] + 1)):
        tensor = tensor.permute([*there, *(place for place in range(tensor.dim()) if place not in there)])
        there = list(range(len(there)))
    before, after = there[0], tensor.dim() - there[-1] - 1
    shape, strides = list(tensor.shape), list(tensor.stride())
    shape[there[0] : there[-1] + 1] = indices[0].shape
    strides[there[0] : there[-1] + 1] = [0] * indices[0].dim()
    placed = [index.reshape([1] * before + list(index.shape) + [1] * after) for index in indices]
    if on_gpu and len({index.stride() for index in placed}) > 1:
        placed = [index.contiguous() for index in placed]
    return [tensor.as_strided(shape, strides), *placed]


def _bare(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
