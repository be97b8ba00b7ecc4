"""Linear layers: products of few rows at the bandwidth of memory, and tiled products of many rows on Tensor Cores.

A kernel is one of two, by its tile (rows, columns, depth of a step, warps, stages):

- One row: a thread block multiplies a row by some columns of the weight without Tensor Cores. Reading the weight limits
  the speed. Thread blocks of the rows of the same columns are adjacent, so the L2 cache has the weight for all rows but
  the first.
- More rows: a thread block computes a tile of the result by Tensor Cores, and loads the numbers of the next steps
  (`stages`) while it multiplies. Groups of eight tiles of rows take the same columns in turn, so that the L2 cache
  serves both operands.

The sums of up to 16 rows are divided among thread blocks (`split_sums.py`). A bias, an activation and a residual are
part of the kernel that finishes the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional

from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.triton.gated import ACTIVATIONS as FACTORS
from thunder_executors.triton.launch import is_dropping
from thunder_executors.triton.normalized_linear import tile_at
from thunder_executors.triton.operations import operator
from thunder_executors.triton.products.split_sums import FEW, finish, launch_in_parts, multiply
from thunder_executors.triton.rows import MATRIX, as_rows, check_floats, describe, parts_of, power_of_two, rows_of

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"relu": functional.relu, **FACTORS}
NUMBERS = 5  # of a tile: rows, columns, depth of a step, warps and stages
SMALLEST = 16  # columns, and depth of a step, of a tile of Tensor Cores
GROUP = 8  # tiles of rows that take the same columns in turn


@triton.jit
def vector_product_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    y: tl.tensor,
    x_stride: tl.int64,
    weight_stride: tl.int64,
    residual_stride: tl.int64,
    rows: tl.int32,
    columns: tl.int32,
    depth: tl.int32,
    steps: tl.int32,
    ACTIVATION: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
) -> None:
    """Compute some columns of a row, or partial sums over one part of the depth; y is (parts, rows, columns)."""
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(2)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    inside = column < columns
    numbers = weight + column.to(tl.int64)[:, None] * weight_stride
    start = part * steps * STEP
    stop = tl.minimum(start + steps * STEP, depth)
    tile = tile_at(numbers, start + tl.arange(0, STEP), inside[:, None], stop)
    sums = tl.zeros([WIDTH, STEP], tl.float32)
    for begin in range(start, stop, STEP):
        at = begin + tl.arange(0, STEP)
        following = tile_at(numbers, at + STEP, inside[:, None], stop)
        values = tl.load(x + row * x_stride + at, at < stop, 0.0)
        sums += tile.to(tl.float32) * values.to(tl.float32)[None, :]
        tile = following
    total = tl.sum(sums, 1)
    if bias is not None:
        total += tl.load(bias + column, inside, 0.0).to(tl.float32)
    if residual is not None:
        residual += row * residual_stride + column
    write = y + (part.to(tl.int64) * rows + row) * columns + column
    tl.store(write, finish(total, residual, inside, y, ACTIVATION), inside)


@triton.jit
def matrix_product_kernel(
    x: tl.tensor,
    weight: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    y: tl.tensor,
    x_stride: tl.int64,
    weight_stride: tl.int64,
    residual_stride: tl.int64,
    rows: tl.int32,
    columns: tl.int32,
    depth: tl.int32,
    steps: tl.int32,
    ACTIVATION: tl.constexpr,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
    IS_WHOLE: tl.constexpr,
) -> None:
    """Compute a tile of the product, or of partial sums over one part of the depth; y is (parts, rows, columns).

    Rows and columns outside of the product are read as others, and not written. `IS_WHOLE` states whether the depth
    consists of whole steps.
    """
    part = tl.program_id(2)
    block = tl.program_id(0)
    in_group = GROUP * tl.cdiv(columns, WIDTH)
    first = block // in_group * GROUP
    size = tl.minimum(tl.cdiv(rows, TILE) - first, GROUP)
    row = (first + block % in_group % size) * TILE + tl.arange(0, TILE)
    column = block % in_group // size * WIDTH + tl.arange(0, WIDTH)
    values_at = x + (row % rows).to(tl.int64)[:, None] * x_stride
    numbers_at = weight + (column % columns).to(tl.int64)[None, :] * weight_stride
    total = tl.zeros([TILE, WIDTH], tl.float32)
    for step in range(part * steps, tl.minimum((part + 1) * steps, tl.cdiv(depth, STEP))):
        at = step * STEP + tl.arange(0, STEP)
        if IS_WHOLE:
            values = tl.load(values_at + at[None, :])
            numbers = tl.load(numbers_at + at[:, None])
        else:
            values = tl.load(values_at + at[None, :], (at < depth)[None, :], 0.0)
            numbers = tl.load(numbers_at + at[:, None], (at < depth)[:, None], 0.0)
        total += multiply(values, numbers)
    if bias is not None:
        total += tl.load(bias + column, column < columns, 0.0).to(tl.float32)[None, :]
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    if residual is not None:
        residual += row.to(tl.int64)[:, None] * residual_stride + column[None, :]
    write = y + (part.to(tl.int64) * rows + row)[:, None] * columns + column[None, :]
    tl.store(write, finish(total, residual, inside, y, ACTIVATION), inside)


def reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    activation: str,
    tile: Sequence[int],
) -> torch.Tensor:
    """Return `activation(x @ weight.T + bias) + residual`; `tile` only changes its rounding."""
    y = functional.linear(x, weight, bias)
    y = ACTIVATIONS[activation](y) if activation else y
    return y if residual is None else y + residual


@operator(reference)
def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    activation: str,
    tile: Sequence[int],
) -> torch.Tensor:
    """Return `activation(x @ weight.T + bias) + residual` for x [..., depth] and a weight [columns, depth].

    `tile` has the rows, the columns and the depth of the tile of a thread block, its warps, and its stages (0: the
    default of Triton).
    """
    _check(x, weight, bias, residual, activation, tile)
    y = x.new_empty((*x.shape[:-1], weight.shape[0]))
    if is_dropping():
        return y
    depth, columns, rows = x.shape[-1], weight.shape[0], rows_of(x)
    height, width, step, warps, stages = tile
    is_vector = height == 1
    step = min(step, power_of_two(depth)) if is_vector else step
    blocks, tiles = parts_of(columns, width), parts_of(rows, height)
    kernel: Any = vector_product_kernel if is_vector else matrix_product_kernel
    launch_in_parts(
        kernel,
        (tiles, blocks) if is_vector else (tiles * blocks, 1),
        parts_of(depth, step),
        y,
        is_split=height <= FEW,
        warps=warps,
        stages=stages,
        x=as_rows(x),
        weight=weight,
        bias=None if bias is None else bias.contiguous(),
        residual=None if residual is None else as_rows(residual),
        rows=rows,
        columns=columns,
        depth=depth,
        ACTIVATION=activation,
        TILE=height,
        WIDTH=width,
        STEP=step,
        GROUP=GROUP,
        IS_WHOLE=depth % step == 0,
    )
    return y


def _check(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    activation: str,
    tile: Sequence[int],
) -> None:
    """Raise KernelRefuses unless the shapes and dtypes of the operands fit, and the tile and the activation exist."""
    check_floats(x=x)
    rows_of(x)
    depth, columns = x.shape[-1], weight.shape[0]
    operands = [tensor for tensor in (weight, bias, residual) if tensor is not None]
    fits = (
        all(tensor.dtype == x.dtype for tensor in operands)
        and weight.ndim == MATRIX
        and weight.shape[1] == depth
        and (weight.stride(1) == 1 or depth == 1)
        and (bias is None or bias.shape == (columns,))
        and (residual is None or tuple(residual.shape) == (*x.shape[:-1], columns))
    )
    if not fits or not depth or not columns:
        raise KernelRefuses(
            f"a linear layer got {describe(x, *operands)}",
            fix="pass x: [..., depth], a weight: (columns, depth) with dense rows, a bias: (columns,), and a residual: "
            "[..., columns], all in one dtype",
        )
    if activation and activation not in ACTIVATIONS:
        raise KernelRefuses(
            f"a linear layer has the activation {activation!r}", fix=f"use one of {', '.join(ACTIVATIONS)}"
        )
    is_power = len(tile) == NUMBERS and all(number & (number - 1) == 0 < number for number in tile[:4])
    if not is_power or (tile[0] > 1 and min(tile[:3]) < SMALLEST):
        raise KernelRefuses(
            f"a linear layer has the tile {tuple(tile)}",
            fix=f"pass rows, columns, depth and warps (powers of two, from {SMALLEST} on if rows > 1), and stages",
        )
