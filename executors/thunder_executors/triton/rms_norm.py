"""RMSNorm, alone or after the addition of a residual.

`y = weight * (x / sqrt(mean(x^2) + eps))`, Zhang and Sennrich, 2019 (arXiv:1910.07467), rounded as in Hugging Face's
`LlamaRMSNorm`: the mean and the quotient are float32, and the quotient is rounded to the dtype of x before the
multiplication. With `r = 1 / sqrt(mean(x^2) + eps)` and `g = weight * dy` the derivatives are `dx = r * (g - x * r^2 *
mean(g * x))` and `dweight = sum over rows of dy * x * r`.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.triton.launch import is_dropping
from thunder_executors.triton.operations import operator
from thunder_executors.triton.rows import (
    as_rows,
    block_of,
    check_floats,
    describe,
    launch,
    parts_of,
    rows_of,
    warps_of,
)

# The columns of a row that stays in registers: 64 numbers for each thread of eight warps.
LONGEST_FORWARD, LONGEST_GRADIENT = 16384, 8192
TILE_ROWS, TILE_COLUMNS, MAX_GROUPS, GROUP_ROWS = 16, 128, 64, 128


@triton.jit
def read_sum(
    x: tl.tensor, residual: tl.tensor, column: tl.tensor, inside: tl.tensor, POLICY: tl.constexpr
) -> tl.tensor:
    """Return some columns of x, or of x + residual rounded to the dtype of x, in float32."""
    value = tl.load(x + column, inside, 0.0, eviction_policy=POLICY).to(tl.float32)
    if residual is not None:
        value += tl.load(residual + column, inside, 0.0).to(tl.float32)
        value = value.to(x.dtype.element_ty).to(tl.float32)
    return value


@triton.jit
def store_norm(
    value: tl.tensor,
    scale: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    y: tl.tensor,
    total: tl.tensor,
    column: tl.tensor,
    inside: tl.tensor,
) -> None:
    """Store some columns of the norm, rounded to the dtype of x before the weight, and of the sum if there is one."""
    if total is not None:
        tl.store(total + column, value.to(x.dtype.element_ty), inside)
    value = (value * scale).to(x.dtype.element_ty).to(tl.float32)
    if weight is not None:
        value *= tl.load(weight + column, inside, 0.0).to(tl.float32)
    tl.store(y + column, value.to(y.dtype.element_ty), inside)


@triton.jit
def rms_norm_forward_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    y: tl.tensor,
    total: tl.tensor,
    x_stride: tl.int64,
    residual_stride: tl.int64,
    columns: tl.int32,
    eps: tl.float32,
    BLOCK: tl.constexpr,
    IS_ONE_BLOCK: tl.constexpr,
) -> None:
    """Process one row: total = x + residual, if there is a residual, and y = weight * total / rms(total).

    A row of one block stays in registers between the mean and the quotients. A longer row is read twice.
    """
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    y += row * columns
    if residual is not None:
        residual += row * residual_stride
        total += row * columns
    if IS_ONE_BLOCK:
        column = tl.arange(0, BLOCK)
        inside = column < columns
        value = read_sum(x, residual, column, inside, "evict_first")
        scale = 1.0 / tl.sqrt(tl.sum(value * value) / columns + eps)
        store_norm(value, scale, x, weight, y, total, column, inside)
    else:
        squares = tl.zeros([BLOCK], tl.float32)
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            value = read_sum(x, residual, column, column < columns, "evict_last")
            squares += value * value
        scale = 1.0 / tl.sqrt(tl.sum(squares) / columns + eps)
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            value = read_sum(x, residual, column, column < columns, "evict_first")
            store_norm(value, scale, x, weight, y, total, column, column < columns)


@triton.jit
def read_slope(
    dy: tl.tensor, weight: tl.tensor, column: tl.tensor, inside: tl.tensor, POLICY: tl.constexpr
) -> tl.tensor:
    """Return some columns of dy, times the weight if there is one, in float32."""
    slope = tl.load(dy + column, inside, 0.0, eviction_policy=POLICY).to(tl.float32)
    if weight is not None:
        slope *= tl.load(weight + column, inside, 0.0).to(tl.float32)
    return slope


@triton.jit
def rms_norm_input_gradient_kernel(
    dy: tl.tensor,
    dtotal: tl.tensor,
    x: tl.tensor,
    weight: tl.tensor,
    dx: tl.tensor,
    scales: tl.tensor,
    dy_stride: tl.int64,
    dtotal_stride: tl.int64,
    x_stride: tl.int64,
    columns: tl.int32,
    eps: tl.float32,
    BLOCK: tl.constexpr,
    IS_ONE_BLOCK: tl.constexpr,
) -> None:
    """Process one row: dx = r * (g - x * r^2 * mean(g * x)) + dtotal, and r, which the weight's gradient needs.

    A row of one block is read once, and a longer row twice.
    """
    row = tl.program_id(0).to(tl.int64)
    x += row * x_stride
    dy += row * dy_stride
    dx += row * columns
    if dtotal is not None:
        dtotal += row * dtotal_stride
    if IS_ONE_BLOCK:
        column = tl.arange(0, BLOCK)
        inside = column < columns
        value = tl.load(x + column, inside, 0.0, eviction_policy="evict_first").to(tl.float32)
        slope = read_slope(dy, weight, column, inside, "evict_first")
        scale = 1.0 / tl.sqrt(tl.sum(value * value) / columns + eps)
        # (scale * mean) * scale^2 stays finite in cases in which scale^3 would overflow.
        correction = (scale * (tl.sum(value * slope) / columns)) * scale * scale
        result = slope * scale - value * correction
        if dtotal is not None:
            result += tl.load(dtotal + column, inside, 0.0).to(tl.float32)
        tl.store(dx + column, result.to(dx.dtype.element_ty), inside)
    else:
        squares = tl.zeros([BLOCK], tl.float32)
        products = tl.zeros([BLOCK], tl.float32)
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            inside = column < columns
            value = tl.load(x + column, inside, 0.0, eviction_policy="evict_last").to(tl.float32)
            squares += value * value
            products += value * read_slope(dy, weight, column, inside, "evict_last")
        scale = 1.0 / tl.sqrt(tl.sum(squares) / columns + eps)
        correction = (scale * (tl.sum(products) / columns)) * scale * scale
        for start in range(0, columns, BLOCK):
            column = start + tl.arange(0, BLOCK)
            inside = column < columns
            value = tl.load(x + column, inside, 0.0, eviction_policy="evict_first").to(tl.float32)
            slope = read_slope(dy, weight, column, inside, "evict_first")
            result = slope * scale - value * correction
            if dtotal is not None:
                result += tl.load(dtotal + column, inside, 0.0).to(tl.float32)
            tl.store(dx + column, result.to(dx.dtype.element_ty), inside)
    tl.store(scales + row, scale)


@triton.jit
def rms_norm_weight_gradient_kernel(
    dy: tl.tensor,
    x: tl.tensor,
    scales: tl.tensor,
    partial: tl.tensor,
    dy_stride: tl.int64,
    x_stride: tl.int64,
    rows: tl.int32,
    columns: tl.int32,
    group_rows: tl.int32,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
) -> None:
    """Process some columns of a group of rows: the sum of dy * round(x * r) over the group."""
    group = tl.program_id(1)
    column = tl.program_id(0) * TILE_COLUMNS + tl.arange(0, TILE_COLUMNS)
    first = group * group_rows
    last = tl.minimum(first + group_rows, rows)
    sums = tl.zeros([TILE_ROWS, TILE_COLUMNS], tl.float32)
    for start in range(first, last, TILE_ROWS):
        row = (start + tl.arange(0, TILE_ROWS)).to(tl.int64)
        inside = (row < last)[:, None] & (column < columns)[None, :]
        value = tl.load(x + row[:, None] * x_stride + column[None, :], inside, 0.0).to(tl.float32)
        scale = tl.load(scales + row, row < last, 0.0)
        normalized = (value * scale[:, None]).to(x.dtype.element_ty).to(tl.float32)
        sums += normalized * tl.load(dy + row[:, None] * dy_stride + column[None, :], inside, 0.0).to(tl.float32)
    tl.store(partial + group.to(tl.int64) * columns + column, tl.sum(sums, 0), column < columns)


def reference(x: torch.Tensor, weight: torch.Tensor | None = None, eps: float = 1e-6) -> torch.Tensor:
    """Compute RMSNorm like Hugging Face's LlamaRMSNorm."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    normalized = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)
    return normalized if weight is None else weight * normalized


def add_reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norm of x + residual, and x + residual."""
    total = x + residual
    return reference(total, weight, eps), total


def input_gradient_reference(
    dy: torch.Tensor,
    dtotal: torch.Tensor | None,
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return dx by the formula, and r for each row."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    slope = dy.to(wide.dtype) * (1 if weight is None else weight.to(wide.dtype))
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    dx = scale * (slope - wide * scale.pow(2) * (slope * wide).mean(-1, keepdim=True))
    return (dx if dtotal is None else dx + dtotal).to(x.dtype), scale.flatten()


def weight_gradient_reference(
    dy: torch.Tensor, x: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return the sum over rows of dy * x * r."""
    normalized = (x.flatten(0, -2).to(scales.dtype) * scales[:, None]).to(x.dtype)
    return (dy.flatten(0, -2).to(scales.dtype) * normalized).sum(0).to(dtype)


def _launch_over_rows(kernel: Any, rows: int, columns: int, longest: int, **arguments: Any) -> None:
    """Launch a kernel with a thread block for each row, which keeps a row of at most `longest` columns in registers."""
    block = block_of(columns, longest)
    is_one_block = int(columns) <= block
    block = block if is_one_block else block_of(columns)
    constants = {"BLOCK": block, "IS_ONE_BLOCK": is_one_block}
    launch(kernel, (rows if columns else 0,), warps_of(block), columns=columns, **constants, **arguments)


def _forward(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, torch.Tensor | None]:
    check_floats(x=x, residual=residual, weight=weight)
    rows_of(x)
    dtype = x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)
    y = torch.empty(x.shape, dtype=dtype, device=x.device)
    total = None if residual is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if weight is not None and weight.shape != x.shape[-1:]:
        raise KernelRefuses(
            f"RMSNorm of {describe(x)} got a weight of {describe(weight)}",
            fix="pass a weight with one element for each element of the last dimension, or none",
        )
    if is_dropping():
        return y, total
    values, others = as_rows(x), None if residual is None else as_rows(residual)
    rows, columns = values.shape
    _launch_over_rows(
        rms_norm_forward_kernel,
        rows,
        columns,
        LONGEST_FORWARD,
        x=values,
        residual=others,
        weight=None if weight is None else weight.contiguous(),
        y=y,
        total=total,
        eps=eps,
    )
    return y, total


@operator(reference)
def rms_norm(x: torch.Tensor, weight: torch.Tensor | None = None, eps: float = 1e-6) -> torch.Tensor:
    """Normalize the last dimension of x (any shape); the result is contiguous, with the dtype of `weight * x`."""
    return _forward(x, None, weight, eps)[0]


@operator(add_reference)
def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor | None = None, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the norm of x + residual (one shape and dtype), and x + residual."""
    if x.shape != residual.shape or x.dtype != residual.dtype:
        raise KernelRefuses(
            f"a residual of {describe(residual)} does not fit {describe(x)}",
            fix="pass both in the same shape and dtype",
        )
    y, total = _forward(x, residual, weight, eps)
    assert total is not None
    return y, total


@operator(input_gradient_reference)
def rms_norm_input_gradient(
    dy: torch.Tensor,
    dtotal: torch.Tensor | None,
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    eps: float = 1e-6,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradient of x, including the gradient of `x + residual` if given, and r for each row in float32."""
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    scales = torch.empty(rows_of(x), dtype=torch.float32, device=x.device)
    if is_dropping():
        return dx, scales
    values = as_rows(x)
    rows, columns = values.shape
    _launch_over_rows(
        rms_norm_input_gradient_kernel,
        rows,
        columns,
        LONGEST_GRADIENT,
        dy=as_rows(dy),
        dtotal=None if dtotal is None else as_rows(dtotal),
        x=values,
        weight=None if weight is None else weight.contiguous(),
        dx=dx,
        scales=scales,
        eps=eps,
    )
    return dx, scales


@operator(weight_gradient_reference)
def rms_norm_weight_gradient(
    dy: torch.Tensor, x: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """Return the gradient of the weight, from r for each row: summed in float32, then rounded to `dtype`."""
    if is_dropping():
        return torch.empty(x.shape[-1:], dtype=dtype, device=x.device)
    values = as_rows(x)
    rows, columns = values.shape
    groups = max(1, min(MAX_GROUPS, parts_of(rows, GROUP_ROWS)))
    partial = torch.zeros((groups, columns), dtype=torch.float32, device=x.device)
    launch(
        rms_norm_weight_gradient_kernel,
        (parts_of(columns, TILE_COLUMNS), groups if rows else 0),
        warps_of(TILE_ROWS * TILE_COLUMNS),
        dy=as_rows(dy),
        x=values,
        scales=scales,
        partial=partial,
        rows=rows,
        columns=columns,
        group_rows=parts_of(rows, groups),
        TILE_ROWS=TILE_ROWS,
        TILE_COLUMNS=TILE_COLUMNS,
    )
    return partial.sum(0).to(dtype)


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, weight, ctx.eps = inputs
    ctx.save_for_backward(x, weight)


def _backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    dx, scales = rms_norm_input_gradient(dy, None, x, weight, ctx.eps)
    needs_weight_gradient = weight is not None and ctx.needs_input_grad[1]
    return dx, rms_norm_weight_gradient(dy, x, scales, weight.dtype) if needs_weight_gradient else None, None


def _save_total(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    _, _, weight, ctx.eps = inputs
    ctx.save_for_backward(output[1], weight)


def _add_backward(ctx: Any, dy: torch.Tensor, dtotal: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    total, weight = ctx.saved_tensors
    dx, scales = rms_norm_input_gradient(dy, dtotal, total, weight, ctx.eps)
    needs_weight_gradient = weight is not None and ctx.needs_input_grad[2]
    return dx, dx, rms_norm_weight_gradient(dy, total, scales, weight.dtype) if needs_weight_gradient else None, None


rms_norm.differentiate(_save, _backward)
add_rms_norm.differentiate(_save_total, _add_backward)
