"""The derivative of a batch norm in float32 on the CPU, with sums in float64.

A sum over a batch enters each element of the gradient, so its rounding error is the same in all of them. Earlier layers
sum these errors, while the gradients themselves nearly cancel. With sums in float32, the gradient of a bias before a
residual connection has ten times the error of eager PyTorch, whose kernel sums in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

OPERATION = torch.ops.aten.native_batch_norm_backward.default
Gradients = tuple[Tensor | None, ...]


def with_sums_in_float64(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decomposition that sums in float64 for training in float32 on the CPU, else calls `decomposition`."""

    def decompose(
        gradient: Tensor,
        values: Tensor,
        weight: Tensor | None,
        running_mean: Tensor | None,
        running_var: Tensor | None,
        mean: Tensor | None,
        deviation: Tensor | None,
        train: bool,
        eps: float,
        mask: list[bool],
    ) -> Gradients:
        is_wide_in_pytorch = values.device.type == "cpu" and values.dtype == gradient.dtype == torch.float32
        if not train or not is_wide_in_pytorch or mean is None or deviation is None:
            statistics = (running_mean, running_var, mean, deviation)
            result: Gradients = decomposition(gradient, values, weight, *statistics, train, eps, mask)
            return result
        return gradients_of_batch_norm(gradient, values, weight, mean, deviation, mask)

    return decompose


def gradients_of_batch_norm(
    gradient: Tensor, values: Tensor, weight: Tensor | None, mean: Tensor, deviation: Tensor, mask: list[bool]
) -> Gradients:
    """Return the gradients of the values, the weight and the bias of a batch norm in training.

    `deviation` is the reciprocal of the standard deviation of each channel, as the operation saves it.
    """
    reduced_dims = [index for index in range(values.dim()) if index != 1]
    shape = [1, -1, *[1] * (values.dim() - 2)]
    inverse_count = values.shape[1] / values.numel()
    centered = values - mean.view(shape)
    total = torch.sum(gradient, reduced_dims, dtype=torch.float64).to(torch.float32)
    product = torch.sum(gradient * centered, reduced_dims, dtype=torch.float64).to(torch.float32)
    projection = centered * (product * inverse_count * deviation * deviation).view(shape)
    scale = deviation if weight is None else deviation * weight
    result = (gradient - projection - (total * inverse_count).view(shape)) * scale.view(shape)
    return result, product * deviation if mask[1] else None, total if mask[2] else None
