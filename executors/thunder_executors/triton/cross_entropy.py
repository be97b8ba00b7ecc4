"""Softmax cross-entropy of logits.

`loss = logsumexp(logits) - logits[label]`, `dlogits = (exp(logits - logsumexp) - onehot(label)) * dloss`. The sum of
exponentials is computed online, block by block, as in Milakov and Gimelshein, 2018 (arXiv:1805.02867).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional

from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.triton.launch import is_dropping
from thunder_executors.triton.operations import operator
from thunder_executors.triton.rows import (
    as_rows,
    block_of,
    check_floats,
    describe,
    launch,
    launch_over_columns,
    warps_of,
)

LONGEST_FORWARD, LONGEST_GRADIENT = 4096, 2048


@triton.jit
def cross_entropy_kernel(
    logits: tl.tensor,
    labels: tl.tensor,
    logsumexp: tl.tensor,
    picked: tl.tensor,
    losses: tl.tensor,
    logits_stride: tl.int64,
    first: tl.int32,
    columns: tl.int32,
    ignored: tl.int64,
    CONTINUED: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Process one row's words from `first` on: its logsumexp and its label's logit so far, and the loss.

    A label that is not a word gives NaN, where PyTorch stops the program.
    """
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    if CONTINUED:
        highest = tl.load(logsumexp + row)
        total = tl.where(highest == float("-inf"), 0.0, 1.0)
        logit = tl.load(picked + row)
    else:
        highest = float("-inf")
        total = 0.0
        logit = float("nan")
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(logits + row * logits_stride + column, column < columns, float("-inf")).to(tl.float32)
        raised = tl.maximum(highest, tl.max(value))
        # The row has only -inf so far: its exponentials are zero, not NaN.
        base = tl.where(raised == float("-inf"), 0.0, raised)
        total = total * tl.exp(highest - base) + tl.sum(tl.exp(value - base))
        highest = raised
    here = (label >= first) & (label < first + columns)
    logit = tl.where(here, tl.load(logits + row * logits_stride + (label - first), here, 0.0).to(tl.float32), logit)
    result = highest + tl.log(total)
    tl.store(logsumexp + row, result)
    tl.store(picked + row, logit)
    tl.store(losses + row, tl.where(label == ignored, 0.0, result - logit))


@triton.jit
def cross_entropy_gradient_kernel(
    logits: tl.tensor,
    labels: tl.tensor,
    logsumexp: tl.tensor,
    scales: tl.tensor,
    dlogits: tl.tensor,
    logits_stride: tl.int64,
    scales_stride: tl.int64,
    dlogits_stride: tl.int64,
    first: tl.int32,
    columns: tl.int32,
    blocks: tl.int32,
    ignored: tl.int64,
    BLOCK: tl.constexpr,
) -> None:
    """Process a block of a row: (softmax - onehot) * scale; `dlogits` may be `logits`."""
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    label = tl.load(labels + row)
    value = tl.load(logits + row * logits_stride + column, inside, 0.0).to(tl.float32)
    softmax = tl.exp(value - tl.load(logsumexp + row))
    slope = (softmax - tl.where(column + first == label, 1.0, 0.0)) * tl.load(scales + row * scales_stride)
    slope = tl.where(label == ignored, 0.0, slope)
    tl.store(dlogits + row * dlogits_stride + column, slope.to(dlogits.dtype.element_ty), inside)


def reference(
    logits: torch.Tensor,
    labels: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    in_float32: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return PyTorch's cross_entropy, and the logsumexp of each row."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    loss = functional.cross_entropy(wide, labels, ignore_index=ignore_index, reduction=reduction)
    return loss if in_float32 else loss.to(logits.dtype), wide.logsumexp(-1)


def gradient_reference(
    dloss: torch.Tensor,
    logits: torch.Tensor,
    labels: torch.Tensor,
    logsumexp: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> torch.Tensor:
    """Return (softmax - onehot) * dloss."""
    softmax = torch.exp(logits.to(logsumexp.dtype) - logsumexp[:, None])
    is_counted = labels != ignore_index
    onehot = functional.one_hot(torch.where(is_counted, labels, 0), logits.shape[1])
    scale = gradient_scales(dloss, labels, ignore_index, reduction)
    return torch.where(is_counted[:, None], (softmax - onehot) * scale.expand(len(labels))[:, None], 0).to(logits.dtype)


def check_labels(labels: torch.Tensor, rows: int, reduction: str) -> None:
    """Raise KernelRefuses unless there is one label for each row and the reduction is known."""
    if labels.dtype != torch.int64 or labels.shape != (rows,) or reduction not in REDUCTIONS:
        raise KernelRefuses(
            f"cross-entropy of {rows} rows got labels of {describe(labels)} and the reduction {reduction!r}",
            fix=f"pass one int64 label for each row, and one of the reductions {', '.join(REDUCTIONS)}",
        )


REDUCTIONS = {
    "none": lambda losses, is_counted: losses,
    "sum": lambda losses, is_counted: losses.sum(),
    "mean": lambda losses, is_counted: losses.sum() / is_counted.sum(),
}


def gradient_scales(dloss: torch.Tensor, labels: torch.Tensor, ignore_index: int, reduction: str) -> torch.Tensor:
    """Return the factors of the rows' gradients: one number for each row, or one for all rows."""
    wide = dloss.to(torch.promote_types(dloss.dtype, torch.float32))
    return wide / (labels != ignore_index).sum() if reduction == "mean" else wide


def accumulate(
    logits: torch.Tensor, labels: torch.Tensor, state: tuple[torch.Tensor, ...], first: int, ignored: int
) -> None:
    """Add the logits of the words from `first` on to the state of each row."""
    rows, columns = logits.shape
    block = block_of(columns, LONGEST_FORWARD)
    logsumexp, picked, losses = state
    launch(
        cross_entropy_kernel,
        (rows,),
        warps_of(block),
        logits=logits,
        labels=labels,
        logsumexp=logsumexp,
        picked=picked,
        losses=losses,
        first=first,
        columns=columns,
        ignored=ignored,
        CONTINUED=first > 0,
        BLOCK=block,
    )


def store_gradient(
    logits: torch.Tensor,
    labels: torch.Tensor,
    logsumexp: torch.Tensor,
    scales: torch.Tensor,
    dlogits: torch.Tensor,
    first: int,
    ignored: int,
) -> None:
    """Store the gradient of the logits of the words from `first` on in `dlogits`, which may be `logits`."""
    rows, columns = logits.shape
    launch_over_columns(
        cross_entropy_gradient_kernel,
        rows,
        columns,
        LONGEST_GRADIENT,
        warps_of,
        logits=logits,
        labels=labels,
        logsumexp=logsumexp,
        scales=scales,
        dlogits=dlogits,
        first=first,
        ignored=ignored,
    )


def empty_state(rows: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return empty tensors for each row's logsumexp, label's logit and loss."""
    lanes = [torch.empty(rows, dtype=torch.float32, device=device) for _ in range(3)]
    return lanes[0], lanes[1], lanes[2]


def empty_results(rows: torch.Tensor, reduction: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return an empty tensor for the loss of some rows, and one for the logsumexp of each row."""
    logsumexp = torch.empty(rows.shape[0], dtype=torch.float32, device=rows.device)
    return torch.empty(logsumexp.shape if reduction == "none" else (), dtype=dtype, device=rows.device), logsumexp


def _metadata(
    logits: torch.Tensor,
    labels: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    in_float32: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    check_floats(logits=logits)
    check_labels(labels, logits.shape[0], reduction)
    return empty_results(logits, reduction, torch.float32 if in_float32 else logits.dtype)


@operator(reference, metadata=_metadata)
def cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    in_float32: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of logits (rows, words) and int64 labels (rows), and the logsumexp of each row in float32.

    The loss is computed in float32, and rounded to the dtype of the logits unless `in_float32` is set.
    """
    check_floats(logits=logits)
    check_labels(labels, logits.shape[0], reduction)
    values, targets = as_rows(logits), labels.contiguous()
    state = empty_state(values.shape[0], logits.device)
    accumulate(values, targets, state, 0, ignore_index)
    loss = REDUCTIONS[reduction](state[2], targets != ignore_index)
    return loss if in_float32 else loss.to(logits.dtype), state[0]


@operator(gradient_reference)
def cross_entropy_gradient(
    dloss: torch.Tensor,
    logits: torch.Tensor,
    labels: torch.Tensor,
    logsumexp: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> torch.Tensor:
    """Return the gradient of the logits, contiguous."""
    dlogits = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    if not is_dropping():
        scales = gradient_scales(dloss, labels, ignore_index, reduction)
        store_gradient(as_rows(logits), labels.contiguous(), logsumexp, scales, dlogits, 0, ignore_index)
    return dlogits


def save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Save the tensors among the inputs, the logsumexp and the options for the backward."""
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    ctx.ignore_index, ctx.reduction, *_ = inputs[len(tensors) :]
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, output[1])


def _backward(ctx: Any, dloss: torch.Tensor | None, _: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    if dloss is None:
        return None, None, None, None, None
    dlogits = cross_entropy_gradient(dloss, *ctx.saved_tensors, ctx.ignore_index, ctx.reduction)
    return dlogits, None, None, None, None


cross_entropy.differentiate(save_for_backward, _backward)
