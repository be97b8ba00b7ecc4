"""Softmax cross-entropy of the product of hidden states and a vocabulary, without materialized logits.

The logits are computed and consumed for a range of words at a time, and recomputed for the gradients, as in Wijmans et
al., 2024 (arXiv:2411.09009); with logsumexp saved, each word's gradient is complete in one step.
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

CHUNK_ELEMENTS = 2**26  # logits that exist at once without a logits tensor: 128 MiB in bfloat16
CHUNK_WORDS = 1024  # a range of words is a multiple of this, so that the matrix product is fast


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


def _ranges(rows: int, words: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of words whose logits may exist at once."""
    length = max(CHUNK_WORDS, CHUNK_ELEMENTS // max(rows, 1) // CHUNK_WORDS * CHUNK_WORDS)
    for first in range(0, words, length):
        yield first, min(first + length, words)


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
    check_labels(labels, hidden.shape[0], reduction)
    fit = hidden.ndim == weight.ndim == 2 and hidden.shape[1] == weight.shape[1]
    if not fit or hidden.dtype != weight.dtype:
        raise KernelRefuses(
            f"hidden states of {describe(hidden)} do not fit a weight of {describe(weight)}",
            fix="pass hidden states (rows, width) and a weight (words, width) of the same dtype",
        )


@operator(linear_reference, metadata=_metadata)
def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of `hidden @ weight.T` (rows, width; words, width) in float32, and each row's logsumexp."""
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
    """Return the gradients of the hidden states (summed in float32 over the ranges of words) and of the weight."""
    scales = gradient_scales(dloss, labels, ignore_index, reduction)
    targets = labels.contiguous()
    dhidden = torch.zeros(hidden.shape, dtype=torch.float32, device=hidden.device)
    dweight = torch.empty(weight.shape, dtype=weight.dtype, device=weight.device)
    for first, last in _ranges(hidden.shape[0], weight.shape[0]):
        words = weight.narrow(0, first, last - first)
        logits = torch.mm(hidden, words.T)
        store_gradient(logits, targets, logsumexp, scales, logits, first, ignore_index)
        torch.mm(logits.T, hidden, out=dweight.narrow(0, first, last - first))
        dhidden += torch.mm(logits, words)
    return dhidden.to(hidden.dtype), dweight


def _backward(ctx: Any, dloss: torch.Tensor | None, _: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    if dloss is None:
        return None, None, None, None, None
    gradients = linear_cross_entropy_gradient(dloss, *ctx.saved_tensors, ctx.ignore_index, ctx.reduction)
    return *gradients, None, None, None


linear_cross_entropy.differentiate(save_for_backward, _backward)
