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
    MATRIX,
    as_rows,
    block_of,
    check_floats,
    describe,
    launch,
    launch_over_columns,
    warps_of,
)

LONGEST_FORWARD, LONGEST_GRADIENT = 4096, 2048
THREAD_COLUMNS = 8  # adjacent columns of a thread in a step: it loads 16 bytes of a 16-bit dtype at once


@triton.jit
def finite_base(highest: tl.tensor) -> tl.tensor:
    """Return the highest logit, or 0 if all logits are -inf: their exponentials are then zero, not NaN."""
    return tl.where(highest == float("-inf"), 0.0, highest)


@triton.jit
def cross_entropy_kernel(
    logits: tl.tensor,
    labels: tl.tensor,
    logsumexp: tl.tensor,
    label_logits: tl.tensor,
    losses: tl.tensor,
    logits_stride: tl.int64,
    first: tl.int32,
    columns: tl.int32,
    ignored: tl.int64,
    CONTINUED: tl.constexpr,
    BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
) -> None:
    """Update a row's logsumexp and label logit with the classes `first` to `first + columns`, and store the row's loss.

    The loss is final after the last range. If a label is out of range, the loss is NaN; PyTorch raises an error (on
    CUDA: a device assertion).
    """
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    if CONTINUED:
        highest = tl.load(logsumexp + row)
        total = tl.where(highest == float("-inf"), 0.0, 1.0)
        logit = tl.load(label_logits + row)
    else:
        highest = float("-inf")
        total = 0.0
        logit = float("nan")
    # Each thread keeps the highest logit and the sum of its own columns, so that no step waits for other threads.
    highests = tl.full([BLOCK // COLUMNS], float("-inf"), tl.float32)
    totals = tl.zeros([BLOCK // COLUMNS], tl.float32)
    offset = tl.arange(0, BLOCK // COLUMNS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    for start in range(0, columns, BLOCK):
        column = start + offset
        value = tl.load(logits + row * logits_stride + column, column < columns, float("-inf")).to(tl.float32)
        new_highests = tl.maximum(highests, tl.max(value, 1))
        bases = finite_base(new_highests)
        totals = totals * tl.exp(highests - bases) + tl.sum(tl.exp(value - bases[:, None]), 1)
        highests = new_highests
    new_highest = tl.maximum(highest, tl.max(highests, 0))
    base = finite_base(new_highest)
    total = total * tl.exp(highest - base) + tl.sum(totals * tl.exp(highests - base), 0)
    highest = new_highest
    has_label = (label >= first) & (label < first + columns)
    label_logit = tl.load(logits + row * logits_stride + (label - first), has_label, 0.0).to(tl.float32)
    logit = tl.where(has_label, label_logit, logit)
    result = highest + tl.log(total)
    tl.store(logsumexp + row, result)
    tl.store(label_logits + row, logit)
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
    classes: tl.int32,
    ignored: tl.int64,
    BLOCK: tl.constexpr,
) -> None:
    """Store (softmax - onehot) * scale for a block of a row; NaN if the label is not in [0, classes).

    The row of an ignored label is zero. `dlogits` may alias `logits`.
    """
    row = (tl.program_id(0) // blocks).to(tl.int64)
    column = tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    inside = column < columns
    label = tl.load(labels + row)
    value = tl.load(logits + row * logits_stride + column, inside, 0.0).to(tl.float32)
    softmax = tl.exp(value - tl.load(logsumexp + row))
    gradient = (softmax - tl.where(column + first == label, 1.0, 0.0)) * tl.load(scales + row * scales_stride)
    gradient = tl.where((label >= 0) & (label < classes), gradient, float("nan"))
    gradient = tl.where(label == ignored, 0.0, gradient)
    tl.store(dlogits + row * dlogits_stride + column, gradient.to(dlogits.dtype.element_ty), inside)


def reference(
    logits: torch.Tensor,
    labels: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    in_float32: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return PyTorch's cross_entropy, and the logsumexp of each row."""
    upcast = logits.to(torch.promote_types(logits.dtype, torch.float32))
    loss = functional.cross_entropy(upcast, labels, ignore_index=ignore_index, reduction=reduction)
    return loss if in_float32 else loss.to(logits.dtype), upcast.logsumexp(-1)


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
    loss_gradient = dloss.to(torch.promote_types(dloss.dtype, torch.float32))
    return loss_gradient / (labels != ignore_index).sum() if reduction == "mean" else loss_gradient


def accumulate(
    logits: torch.Tensor, labels: torch.Tensor, state: tuple[torch.Tensor, ...], first: int, ignored: int
) -> None:
    """Update each row's running state (logsumexp, label logit, loss) with logits for the classes from `first`."""
    rows, columns = logits.shape
    block = block_of(columns, LONGEST_FORWARD)
    logsumexp, label_logits, losses = state
    launch(
        cross_entropy_kernel,
        (rows,),
        warps_of(block),
        logits=logits,
        labels=labels,
        logsumexp=logsumexp,
        label_logits=label_logits,
        losses=losses,
        first=first,
        columns=columns,
        ignored=ignored,
        CONTINUED=first > 0,
        BLOCK=block,
        COLUMNS=min(block, THREAD_COLUMNS),
    )


def store_gradient(
    logits: torch.Tensor,
    labels: torch.Tensor,
    logsumexp: torch.Tensor,
    scales: torch.Tensor,
    dlogits: torch.Tensor,
    first: int,
    classes: int,
    ignored: int,
) -> None:
    """Write the logits' gradient for the classes from `first` to `dlogits`, which may alias `logits`.

    `classes` is the number of classes in all ranges: the gradient of a label outside of [0, classes) is NaN.
    """
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
        classes=classes,
        ignored=ignored,
    )


def empty_state(rows: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return uninitialized float32 tensors (rows,) for each row's logsumexp, label logit and loss."""
    state = [torch.empty(rows, dtype=torch.float32, device=device) for _ in range(3)]
    return state[0], state[1], state[2]


def empty_results(inputs: torch.Tensor, reduction: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return uninitialized tensors for the loss, and for the float32 logsumexp of each row of the inputs."""
    logsumexp = torch.empty(inputs.shape[0], dtype=torch.float32, device=inputs.device)
    return torch.empty(logsumexp.shape if reduction == "none" else (), dtype=dtype, device=inputs.device), logsumexp


def _check(logits: torch.Tensor, labels: torch.Tensor, reduction: str) -> None:
    check_floats(logits=logits)
    if logits.ndim != MATRIX:
        raise KernelRefuses(
            f"cross-entropy got logits of {describe(logits)}", fix="pass logits of shape (rows, classes)"
        )
    check_labels(labels, logits.shape[0], reduction)


def _metadata(
    logits: torch.Tensor,
    labels: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    in_float32: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    _check(logits, labels, reduction)
    return empty_results(logits, reduction, torch.float32 if in_float32 else logits.dtype)


@operator(reference, metadata=_metadata)
def cross_entropy(
    logits: torch.Tensor,
    labels: torch.Tensor,
    ignore_index: int = -100,
    reduction: str = "mean",
    in_float32: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the cross-entropy loss, and the float32 logsumexp of each row. `logits` is (N, C); `labels` is int64 (N,).

    The loss is computed in float32, and rounded to the dtype of the logits unless `in_float32` is set.
    A label that is neither ignored nor in [0, C) gives NaN. Raises KernelRefuses for other shapes and dtypes.
    """
    _check(logits, labels, reduction)
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
    """Return the gradient of the logits (N, C), contiguous; NaN in rows whose label is neither ignored nor a class."""
    _check(logits, labels, reduction)
    dlogits = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
    if not is_dropping():
        scales = gradient_scales(dloss, labels, ignore_index, reduction)
        store_gradient(
            as_rows(logits), labels.contiguous(), logsumexp, scales, dlogits, 0, logits.shape[1], ignore_index
        )
    return dlogits


def save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Save the input tensors, the logsumexp and the options for the backward."""
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
