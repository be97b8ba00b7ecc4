"""Linear layers of a normalized row: RMSNorm is computed while the products read their input.

In decoding a token, one row is multiplied by each weight, in the time of reading the weight. Each thread block computes
some columns of a product over the whole depth. It reads the row, of some thousand elements, from the L2 cache: first
for the mean of squares, then again for the products. Thread blocks therefore need no results of each other. The depth
is not split, because a weight has enough columns to keep a GPU busy, with 4 to 16 columns for each thread block. A
thread block requests the first elements of the weight before those of the row, so that both latencies overlap.

The kernel of gate and up also computes SwiGLU: each of its thread blocks has the same columns of both. In the down
projection, each thread block would have to read all columns of gate and up, and compute all exponentials again. The
kernel also writes half as many elements.

A residual is added before the norm, as in `rms_norm.py`, and one thread block of each row writes the sum. Values are
rounded as by the separate operations: the sum, the quotient, the normalized row, and each product.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn.functional import linear

from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.triton import rms_norm
from thunder_executors.triton.gated import ACTIVATIONS, factor_and_slope
from thunder_executors.triton.launch import is_dropping
from thunder_executors.triton.operations import operator
from thunder_executors.triton.products.split_sums import THREAD_BLOCKS
from thunder_executors.triton.rms_norm import read_sum
from thunder_executors.triton.rows import (
    MATRIX,
    as_rows,
    check_floats,
    describe,
    launch,
    parts_of,
    power_of_two,
    rows_of,
)

WIDTHS = (16, 8, 4)  # columns of a thread block, counted over all its weights
TILE = 4096  # elements of the weights in a step: 32 for each thread
LONGEST = 2048  # most elements of the row in a step, for the mean of squares
WARPS = 4


@triton.jit
def inverse_root(
    x: tl.tensor,
    residual: tl.tensor,
    total: tl.tensor,
    depth: tl.int32,
    eps: tl.float32,
    writes: tl.int32,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Return the inverse root of the mean of squares; one thread block writes the sum of the row and the residual."""
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, depth, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = read_sum(x, residual, at, at < depth, "")
        if total is not None:
            tl.store(total + at, value.to(x.dtype.element_ty), (at < depth) & (writes != 0))
        squares += value * value
    return 1.0 / tl.sqrt(tl.sum(squares) / depth + eps)


@triton.jit
def normalize_elements(
    x: tl.tensor, residual: tl.tensor, weight: tl.tensor, scale: tl.tensor, at: tl.tensor, depth: tl.int32
) -> tl.tensor:
    """Return elements of the normalized row, in float32 after rounding to the dtype of the row."""
    value = (read_sum(x, residual, at, at < depth, "") * scale).to(x.dtype.element_ty).to(tl.float32)
    if weight is not None:
        value = (value * tl.load(weight + at, at < depth, 0.0).to(tl.float32)).to(x.dtype.element_ty).to(tl.float32)
    return value


@triton.jit
def tile_at(rows: tl.tensor, at: tl.tensor, inside: tl.tensor, depth: tl.int32) -> tl.tensor:
    """Return a tile of a weight, with zeros outside of the weight."""
    return tl.load(rows + at[None, :], inside & (at < depth)[None, :], 0.0)


@triton.jit
def normalized_linear_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    first: tl.tensor,
    second: tl.tensor,
    third: tl.tensor,
    total: tl.tensor,
    first_y: tl.tensor,
    second_y: tl.tensor,
    third_y: tl.tensor,
    x_stride: tl.int64,
    residual_stride: tl.int64,
    first_stride: tl.int64,
    second_stride: tl.int64,
    third_stride: tl.int64,
    first_columns: tl.int32,
    second_columns: tl.int32,
    third_columns: tl.int32,
    depth: tl.int32,
    eps: tl.float32,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Compute some columns of one of the products of a row."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    x += row * x_stride
    if residual is not None:
        residual += row * residual_stride
        total += row * depth
    writes = (block == 0).to(tl.int32)
    matrix, y, stride, columns = first, first_y, first_stride, first_columns
    if second is not None:
        before = tl.cdiv(first_columns, WIDTH)
        if block >= before:
            block -= before
            matrix, y, stride, columns = second, second_y, second_stride, second_columns
            if third is not None:
                before = tl.cdiv(second_columns, WIDTH)
                if block >= before:
                    block -= before
                    matrix, y, stride, columns = third, third_y, third_stride, third_columns
    column = block * WIDTH + tl.arange(0, WIDTH)
    inside = (column < columns)[:, None]
    at = tl.arange(0, STEP)
    numbers = matrix + column.to(tl.int64)[:, None] * stride
    tile = tile_at(numbers, at, inside, depth)
    scale = inverse_root(x, residual, total, depth, eps, writes, BLOCK)
    sums = tl.zeros([WIDTH, STEP], tl.float32)
    for start in range(0, depth, STEP):
        at = start + tl.arange(0, STEP)
        following = tile_at(numbers, at + STEP, inside, depth)
        sums += tile.to(tl.float32) * normalize_elements(x, residual, weight, scale, at, depth)[None, :]
        tile = following
    tl.store(y + row * columns + column, tl.sum(sums, 1).to(y.dtype.element_ty), column < columns)


@triton.jit
def normalized_gated_kernel(
    x: tl.tensor,
    residual: tl.tensor,
    weight: tl.tensor,
    gate: tl.tensor,
    up: tl.tensor,
    total: tl.tensor,
    y: tl.tensor,
    x_stride: tl.int64,
    residual_stride: tl.int64,
    gate_stride: tl.int64,
    up_stride: tl.int64,
    columns: tl.int32,
    depth: tl.int32,
    eps: tl.float32,
    ACTIVATION: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Compute some columns of a row: the products with gate and up, and y = activation(gate) * up."""
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    x += row * x_stride
    if residual is not None:
        residual += row * residual_stride
        total += row * depth
    column = block * WIDTH + tl.arange(0, WIDTH)
    inside = (column < columns)[:, None]
    at = tl.arange(0, STEP)
    gates = gate + column.to(tl.int64)[:, None] * gate_stride
    ups = up + column.to(tl.int64)[:, None] * up_stride
    gate_tile = tile_at(gates, at, inside, depth)
    up_tile = tile_at(ups, at, inside, depth)
    scale = inverse_root(x, residual, total, depth, eps, (block == 0).to(tl.int32), BLOCK)
    gate_sums = tl.zeros([WIDTH, STEP], tl.float32)
    up_sums = tl.zeros([WIDTH, STEP], tl.float32)
    for start in range(0, depth, STEP):
        at = start + tl.arange(0, STEP)
        gate_following = tile_at(gates, at + STEP, inside, depth)
        up_following = tile_at(ups, at + STEP, inside, depth)
        values = normalize_elements(x, residual, weight, scale, at, depth)[None, :]
        gate_sums += gate_tile.to(tl.float32) * values
        up_sums += up_tile.to(tl.float32) * values
        gate_tile = gate_following
        up_tile = up_following
    gated = tl.sum(gate_sums, 1).to(y.dtype.element_ty).to(tl.float32)
    up_value = tl.sum(up_sums, 1).to(y.dtype.element_ty).to(tl.float32)
    factor, _ = factor_and_slope(gated, ACTIVATION)
    tl.store(y + row * columns + column, (gated * factor * up_value).to(y.dtype.element_ty), column < columns)


def normalized_and_sum(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor | None, eps: float
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the normalized rows, and their sum with the residual if there is one."""
    if residual is None:
        return rms_norm.reference(x, weight, eps), []
    normal, total = rms_norm.add_reference(x, residual, weight, eps)
    return normal, [total]


def reference(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    eps: float,
    first: torch.Tensor,
    second: torch.Tensor | None = None,
    third: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Return the products of the normalized rows with one to three weights, and the sum with the residual."""
    normal, total = normalized_and_sum(x, residual, weight, eps)
    return [*(linear(normal, matrix) for matrix in (first, second, third) if matrix is not None), *total]


def gated_reference(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    eps: float,
    gate: torch.Tensor,
    up: torch.Tensor,
    activation: str = "silu",
) -> list[torch.Tensor]:
    """Return the activation of the product with gate, times the product with up, and the sum with the residual."""
    normal, total = normalized_and_sum(x, residual, weight, eps)
    return [ACTIVATIONS[activation](linear(normal, gate)) * linear(normal, up), *total]


@operator(reference)
def normalized_linear(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    eps: float,
    first: torch.Tensor,
    second: torch.Tensor | None = None,
    third: torch.Tensor | None = None,
) -> list[torch.Tensor]:
    """Return the products of the RMSNorm of x [..., depth] with each of the weights [columns, depth].

    With a residual, the norm is of x + residual, which is the last result.
    """
    matrices = {name: matrix for name, matrix in zip(NAMES, (first, second, third), strict=True) if matrix is not None}
    _check(x, residual, weight, *matrices.values())
    results = {f"{name}_y": x.new_empty((*x.shape[:-1], matrix.shape[0])) for name, matrix in matrices.items()}
    total = sum_for(x, residual)
    outputs = [*results.values(), *([] if total is None else [total])]
    if is_dropping():
        return outputs
    columns = {name: matrix.shape[0] for name, matrix in matrices.items()}
    width = width_of(rows_of(x), sum(columns.values()))
    _launch(
        normalized_linear_kernel,
        sum(parts_of(number, width) for number in columns.values()),
        width,
        TILE // width,
        x=x,
        residual=residual,
        weight=weight,
        total=total,
        eps=eps,
        **{name: matrices.get(name) for name in NAMES},
        **{f"{name}_y": results.get(f"{name}_y") for name in NAMES},
        **{f"{name}_columns": columns.get(name, 0) for name in NAMES},
    )
    return outputs


@operator(gated_reference)
def normalized_gated(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor | None,
    eps: float,
    gate: torch.Tensor,
    up: torch.Tensor,
    activation: str = "silu",
) -> list[torch.Tensor]:
    """Return `activation(normal @ gate.T) * (normal @ up.T)` for the RMSNorm of x [..., depth].

    With a residual, the norm is of x + residual, which is the last result.
    """
    _check(x, residual, weight, gate, up)
    if gate.shape != up.shape or activation not in ACTIVATIONS:
        raise KernelRefuses(
            f"gate and up of {describe(gate, up)} cannot be combined by {activation!r}",
            fix=f"pass two weights of the same shape, and one of {', '.join(ACTIVATIONS)}",
        )
    y = x.new_empty((*x.shape[:-1], gate.shape[0]))
    total = sum_for(x, residual)
    outputs = [y] if total is None else [y, total]
    if is_dropping():
        return outputs
    width = width_of(rows_of(x), 2 * gate.shape[0]) // 2
    _launch(
        normalized_gated_kernel,
        parts_of(gate.shape[0], width),
        width,
        TILE // (2 * width),
        x=x,
        residual=residual,
        weight=weight,
        total=total,
        eps=eps,
        gate=gate,
        up=up,
        y=y,
        columns=gate.shape[0],
        ACTIVATION=activation,
    )
    return outputs


NAMES = ("first", "second", "third")


def _launch(kernel: Any, blocks: int, width: int, step: int, **arguments: Any) -> None:
    """Launch a thread block for each row and each block of columns; all rows of the same columns are adjacent."""
    x, residual, weight = arguments["x"], arguments["residual"], arguments["weight"]
    depth = x.shape[-1]
    rows = {"x": as_rows(x), "residual": None if residual is None else as_rows(residual)}
    sizes = {"depth": depth, "BLOCK": min(power_of_two(depth), LONGEST)}
    arguments |= rows | sizes | {"weight": None if weight is None else weight.contiguous()}
    launch(kernel, (rows_of(x), blocks), WARPS, **arguments, WIDTH=width, STEP=min(power_of_two(depth), step))


def sum_for(x: torch.Tensor, residual: torch.Tensor | None) -> torch.Tensor | None:
    """Return an empty tensor for the sum of x and the residual; None without a residual."""
    return None if residual is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)


def width_of(rows: int, columns: int) -> int:
    """Return the columns of a thread block, such that all thread blocks together keep a GPU busy."""
    return next((width for width in WIDTHS if rows * parts_of(columns, width) >= THREAD_BLOCKS), WIDTHS[-1])


def _check(
    x: torch.Tensor, residual: torch.Tensor | None, weight: torch.Tensor | None, *matrices: torch.Tensor
) -> None:
    """Raise KernelRefuses unless all tensors have the dtype and the depth of x, and the rows of weights are dense."""
    check_floats(x=x)
    rows_of(x)
    depth = x.shape[-1]
    operands = [tensor for tensor in (residual, weight, *matrices) if tensor is not None]
    fits = (
        all(tensor.dtype == x.dtype for tensor in operands)
        and (residual is None or residual.shape == x.shape)
        and (weight is None or weight.shape == (depth,))
        and all(matrix.ndim == MATRIX and matrix.shape[1] == depth for matrix in matrices)
        and all(matrix.stride(1) == 1 or depth == 1 for matrix in matrices)
    )
    if not fits or not depth:
        raise KernelRefuses(
            f"products of a normalized row got {describe(x, *operands)}",
            fix="pass x and the residual: [..., depth], a weight of the norm: (depth,), and weights of the products: "
            "(columns, depth) with dense rows, all in one dtype",
        )
