"""Softmax cross-entropy of the product of hidden states and a weight, without materialized logits.

The logits are computed and consumed for a range of classes at a time, and recomputed for the gradients, as in Wijmans
et al., 2024 (arXiv:2411.09009). The logsumexp is saved, so each class's gradient is complete in one step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.triton.cross_entropy import (
    REDUCTIONS,
    accumulate,
    check_labels,
    empty_results,
    empty_state,
    gradient_reference,
    gradient_scales,
    reference,
    save_for_backward,
    store_gradient,
)
from thunder_executors.triton.operations import operator
from thunder_executors.triton.rows import check_floats, describe

CHUNK_ELEMENTS = 2**26  # most logits that exist at once: 128 MiB in bfloat16
CHUNK_CLASSES = 1024  # the length of a range of classes is a multiple of this, so that the matrix product is fast


def linear_reference(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of a language model's head as in Hugging Face, in float32, and the logsumexp of each row."""
    return reference(functional.linear(hidden, weight), labels, ignore_index, reduction, in_float32=True)


def linear_gradient_reference(
    dloss: torch.Tensor,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    logsumexp: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of the hidden states and of the weight, from the gradients of the logits."""
    logits = functional.linear(hidden, weight)
    dlogits = gradient_reference(dloss, logits, labels, logsumexp, ignore_index, reduction)
    return dlogits @ weight, dlogits.T @ hidden


def _ranges(rows: int, classes: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of classes whose logits may exist at once."""
    length = max(CHUNK_CLASSES, CHUNK_ELEMENTS // max(rows, 1) // CHUNK_CLASSES * CHUNK_CLASSES)
    for first in range(0, classes, length):
        yield first, min(first + length, classes)


def _metadata(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> tuple[torch.Tensor, torch.Tensor]:
    _check(hidden, weight, labels, reduction)
    return empty_results(hidden, reduction, torch.float32)


def _check(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, reduction: str) -> None:
    check_floats(hidden=hidden, weight=weight)
    fit = hidden.ndim == weight.ndim == 2 and hidden.shape[1] == weight.shape[1]
    if not fit or hidden.dtype != weight.dtype:
        raise KernelRefuses(
            f"hidden states of {describe(hidden)} do not fit a weight of {describe(weight)}",
            fix="pass hidden states (rows, width) and a weight (classes, width) of the same dtype",
        )
    check_labels(labels, hidden.shape[0], reduction)


@operator(linear_reference, metadata=_metadata)
def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cross-entropy loss of `hidden @ weight.T`, and the logsumexp of each row, both in float32.

    `hidden` is (N, width), `weight` is (C, width), and `labels` is int64 (N,). A label that is neither ignored nor in
    [0, C) gives NaN. Raises KernelRefuses for other shapes and dtypes.
    """
    _check(hidden, weight, labels, reduction)
    rows, targets = hidden.shape[0], labels.contiguous()
    state = empty_state(rows, hidden.device)
    for first, last in _ranges(rows, weight.shape[0]):
        accumulate(torch.mm(hidden, weight.narrow(0, first, last - first).T), targets, state, first, ignore_index)
    return REDUCTIONS[reduction](state[2], targets != ignore_index), state[0]


def _gradient_metadata(
    dloss: torch.Tensor,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    logsumexp: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> tuple[torch.Tensor, torch.Tensor]:
    shapes = (hidden.shape, weight.shape)
    dhidden, dweight = (torch.empty(shape, dtype=hidden.dtype, device=hidden.device) for shape in shapes)
    return dhidden, dweight


@operator(linear_gradient_reference, metadata=_gradient_metadata)
def linear_cross_entropy_gradient(
    dloss: torch.Tensor,
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    logsumexp: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of the hidden states (summed in float32 over the ranges of classes) and of the weight."""
    _check(hidden, weight, labels, reduction)
    scales = gradient_scales(dloss, labels, ignore_index, reduction)
    targets = labels.contiguous()
    dhidden = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
    dweight = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
    classes = weight.shape[0]
    for first, last in _ranges(hidden.shape[0], classes):
        weight_range = weight.narrow(0, first, last - first)
        logits = torch.mm(hidden, weight_range.T)
        store_gradient(logits, targets, logsumexp, scales, logits, first, classes, ignore_index)
        torch.mm(logits.T, hidden, out=dweight.narrow(0, first, last - first))
        dhidden += torch.mm(logits, weight_range)
    return dhidden.to(hidden.dtype), dweight


def _backward(ctx: Any, dloss: torch.Tensor | None, _: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    if dloss is None:
        return None, None, None, None, None
    gradients = linear_cross_entropy_gradient(dloss, *ctx.saved_tensors, ctx.ignore_index, ctx.reduction)
    return *gradients, None, None, None


linear_cross_entropy.differentiate(save_for_backward, _backward)
