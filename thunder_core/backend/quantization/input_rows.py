"""The input rows of layers with quantized weights: conversion to the dtype of products, and scaling before rounding."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from thunder_core.backend.quantization.integers import SMALLEST_SCALE
from thunder_core.foundation.errors import NotDifferentiable

Reduce = Callable[[Tensor, str], Tensor]  # a reduction ("sum" or "max") of the tensors of all ranks


def require_no_gradient(x: Tensor, rounding: str) -> None:
    """Raise `NotDifferentiable` if a gradient of `x` is needed; `rounding` describes how the layer rounds `x`."""
    if torch.is_grad_enabled() and x.requires_grad:
        raise NotDifferentiable(
            f"a layer whose inputs are rounded {rounding} has no derivative",
            fix="call the model under torch.no_grad(), or train with the recipe nf4-lora",
        )


def no_reduction(tensor: Tensor, reduction: str) -> Tensor:
    """Return a tensor unchanged. This replaces the reduction over ranks for a layer that is not divided among ranks."""
    return tensor


def scale_rows(x: Tensor, largest: float, reduce: Reduce = no_reduction) -> tuple[Tensor, Tensor]:
    """Return rows (n, columns) divided by scales (n, 1), and the scales.

    Each row's largest magnitude becomes `largest`. Both results are in float32, or in float64 for a reference. If each
    rank has some columns, `reduce` finds the largest magnitude on all ranks.
    """
    rows = x.to(torch.promote_types(x.dtype, torch.float32))
    scales = reduce(rows.abs().amax(1, keepdim=True), "max").clamp(min=SMALLEST_SCALE) / largest
    return rows / scales, scales


def to_compute_dtype(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return numbers in the compute dtype of products: float64 if `dtype` (or their own) is float64, else bfloat16."""
    return x.to(torch.float64 if (dtype or x.dtype) == torch.float64 else torch.bfloat16)


def bfloat16_of(codes: Tensor) -> Tensor:
    """Return numbers in float8_e4m3fn, none of them NaN, as bfloat16, by their bits.

    PyTorch converts element by element, which is slower. This function moves sign, exponent and fraction to their bits
    in bfloat16. Because the exponent biases are 7 and 127, it then multiplies by 2^120.
    """
    bits = codes.view(torch.uint8).to(torch.int16)
    return ((bits & 128) << 8 | (bits & 127) << 4).view(torch.bfloat16) * 2.0**120
