"""The functions that generated regions use. Lazy binding lets nvFuser load with other minor versions of PyTorch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import torch

# The wheels are built against PyTorch 2.10; later versions lack a logging function that is never called.
_flags = sys.getdlopenflags()
sys.setdlopenflags(os.RTLD_LAZY)
try:
    from nvfuser_direct import DataType, FusionDefinition
finally:
    sys.setdlopenflags(_flags)

__all__ = ["DataType", "FusionDefinition", "laid_out"]


def laid_out(result: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """Return a result with these strides, because nvFuser may return it with the memory layout of an input."""
    if result.stride() == stride:
        return result
    if all(
        size < 2 or own == wanted_stride
        for size, own, wanted_stride in zip(result.shape, result.stride(), stride, strict=True)
    ):
        return result.as_strided(result.shape, stride)
    copy = torch.empty_strided(result.shape, stride, dtype=result.dtype, device=result.device)
    return copy.copy_(result)
