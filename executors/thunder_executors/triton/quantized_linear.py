"""Linear layers with quantized weights of 8 and 4 bits: the kernels dequantize the weights in registers.

The codes (quantized weights) and scales are those of `thunder_core.backend.quantization.integers`. Codes are exact in
every floating-point dtype, and sums are float32. A scale multiplies a sum of products: with 8 bits,
`y = scale * sum(x * code)`, and with 4 bits, `y = sum over groups of scale * sum(x * (code - 8)) + zero * sum(x)`.

Each thread block computes a tile of `tile` rows of the result. The depth is the length of the sums: the number of
columns of x. With few rows, reading the codes limits the speed, and the sums are divided among thread blocks
(`split_sums.py`).
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn.functional import linear

from thunder_core.backend.quantization.integers import BLOCK, dequantize_groups, unpack
from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.triton.launch import is_dropping
from thunder_executors.triton.operations import operator
from thunder_executors.triton.products.split_sums import FEW, launch_in_parts, multiply
from thunder_executors.triton.rows import (
    MATRIX,
    as_rows,
    check_floats,
    describe,
    is_certain,
    parts_of,
    power_of_two,
)

TILES = (FEW, 64)
MIN_DEPTH, MAX_DEPTH = 16, 128  # the part of the depth that a thread block processes in a step


@triton.jit
def int8_linear_kernel(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    factors: tl.tensor,
    y: tl.tensor,
    x_stride: tl.int64,
    codes_stride: tl.int64,
    rows: tl.int32,
    columns: tl.int32,
    depth: tl.int32,
    steps: tl.int32,
    TILE: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
) -> None:
    """Compute a tile of the partial sums over one part of the depth; y is (parts, rows, columns)."""
    part = tl.program_id(2)
    row = tl.program_id(1) * TILE + tl.arange(0, TILE)
    column = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    values_at = x + row.to(tl.int64)[:, None] * x_stride
    codes_at = codes + column.to(tl.int64)[None, :] * codes_stride
    total = tl.zeros([TILE, WIDTH], tl.float32)
    for step in range(part * steps, tl.minimum((part + 1) * steps, tl.cdiv(depth, STEP))):
        at = step * STEP + tl.arange(0, STEP)
        inside = at < depth
        values = tl.load(values_at + at[None, :], (row < rows)[:, None] & inside[None, :], 0.0)
        if factors is not None:
            factor = tl.load(factors + at, inside, 0.0).to(tl.float32)[None, :]
            values = (values.to(tl.float32) * factor).to(values.dtype)
        total += multiply(values, tl.load(codes_at + at[:, None], inside[:, None] & (column < columns)[None, :], 0))
    total *= tl.load(scales + column, column < columns, 0.0).to(tl.float32)[None, :]
    write = y + (part.to(tl.int64) * rows + row)[:, None] * columns + column[None, :]
    tl.store(write, total.to(y.dtype.element_ty), (row < rows)[:, None] & (column < columns)[None, :])


@triton.jit
def int4_linear_kernel(
    x: tl.tensor,
    codes: tl.tensor,
    scales: tl.tensor,
    y: tl.tensor,
    x_stride: tl.int64,
    rows: tl.int32,
    columns: tl.int32,
    depth: tl.int32,
    group: tl.int32,
    group_steps: tl.int32,
    steps: tl.int32,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
) -> None:
    """Compute a tile of the partial sums of 64 columns over one part of the depth; y is (parts, rows, columns).

    The lower half of a byte is the code of column i, and the upper half is the code of column i + 32. `group` is the
    number of columns of x in a group, which is processed in `group_steps` steps.
    """
    block = tl.program_id(0)
    part = tl.program_id(2)
    row = tl.program_id(1) * TILE + tl.arange(0, TILE)
    lane = tl.arange(0, 32)
    low = block * 64 + lane
    high = low + 32
    values_at = x + row.to(tl.int64)[:, None] * x_stride
    codes_at = codes + block.to(tl.int64) * depth * 32 + lane[None, :]
    low_total = tl.zeros([TILE, 32], tl.float32)
    high_total = tl.zeros([TILE, 32], tl.float32)
    for step in range(part * steps, tl.minimum((part + 1) * steps, depth // group * group_steps)):
        group_index = step // group_steps
        within = step % group_steps * STEP + tl.arange(0, STEP)
        inside = within < group
        at = group_index * group + within
        values = tl.load(values_at + at[None, :], (row < rows)[:, None] & inside[None, :], 0.0)
        pairs = tl.load(codes_at + at.to(tl.int64)[:, None] * 32, inside[:, None], 0)
        sums = tl.sum(values.to(tl.float32), 1)[:, None]
        group_scales = scales + group_index.to(tl.int64) * columns * 2
        scale = tl.load(group_scales + low * 2, low < columns, 0.0).to(tl.float32)[None, :]
        zero = tl.load(group_scales + low * 2 + 1, low < columns, 0.0).to(tl.float32)[None, :]
        low_total += multiply(values, (pairs & 15).to(tl.int8) - 8) * scale + sums * zero
        scale = tl.load(group_scales + high * 2, high < columns, 0.0).to(tl.float32)[None, :]
        zero = tl.load(group_scales + high * 2 + 1, high < columns, 0.0).to(tl.float32)[None, :]
        high_total += multiply(values, (pairs >> 4).to(tl.int8) - 8) * scale + sums * zero
    write = y + (part.to(tl.int64) * rows + row)[:, None] * columns
    inside_rows = (row < rows)[:, None]
    tl.store(write + low[None, :], low_total.to(y.dtype.element_ty), inside_rows & (low < columns)[None, :])
    tl.store(write + high[None, :], high_total.to(y.dtype.element_ty), inside_rows & (high < columns)[None, :])


def int8_reference(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    factors: torch.Tensor | None = None,
    tile: int = FEW,
) -> torch.Tensor:
    """Return `(x * factors) @ codes.T * scales`; see `int8_linear`. `tile` has no effect on the result."""
    rows = x if factors is None else x * factors.to(x.dtype)
    return linear(rows, codes.to(x.dtype)) * scales.to(x.dtype)


def int4_reference(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, tile: int = FEW) -> torch.Tensor:
    """Return `x @ weight.T` for the dequantized weight; see `int4_linear`. `tile` has no effect on the result."""
    return linear(x, dequantize_groups(unpack(codes)[: scales.shape[1]], scales, x.dtype))


@operator(int8_reference)
def int8_linear(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    factors: torch.Tensor | None = None,
    tile: int = FEW,
) -> torch.Tensor:
    """Return the product of x (n, depth) and a weight in 8 bits: codes (columns, depth) and scales (columns,).

    If `factors` (depth,) are given, the columns of x are multiplied by them first. A thread block computes `tile` rows.
    """
    check_floats(x=x, scales=scales, factors=factors)
    _check(x, codes, scales, tile, factors is None or factors.shape == codes.shape[1:])
    _check(x, codes, scales, tile, codes.dtype == torch.int8 and codes.ndim == MATRIX == scales.ndim + 1)
    _check(x, codes, scales, tile, is_certain(codes.shape[1] == x.shape[1]) and scales.shape == codes.shape[:1])
    columns, depth = codes.shape
    y = torch.empty((x.shape[0], columns), dtype=x.dtype, device=x.device)
    if is_dropping():
        return y
    width, step = (64, 128) if tile == FEW else (128, 64)
    grid = (parts_of(columns, width), parts_of(x.shape[0], tile))
    tensors = {"x": as_rows(x), "codes": as_rows(codes), "scales": scales.contiguous()}
    sizes = {"rows": x.shape[0], "columns": columns, "depth": depth}
    factors = None if factors is None else factors.contiguous()
    constants = {"TILE": tile, "WIDTH": width, "STEP": step}
    is_split = tile == FEW
    steps = parts_of(depth, step)
    arguments: dict[str, Any] = {**tensors, **sizes, **constants, "factors": factors}
    launch_in_parts(int8_linear_kernel, grid, steps, y, is_split=is_split, **arguments)
    return y


@operator(int4_reference)
def int4_linear(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, tile: int = FEW) -> torch.Tensor:
    """Return the product of x (n, depth) and a weight in 4 bits: packed codes (blocks, depth, 32), scales and zeros.

    `scales` (groups, columns, 2) holds pairs of a scale and a zero; each group has the same number of columns of x. A
    thread block computes `tile` rows.
    """
    check_floats(x=x, scales=scales)
    _check(x, codes, scales, tile, codes.dtype == torch.uint8 and codes.ndim == scales.ndim == MATRIX + 1)
    groups, columns, _ = scales.shape
    depth = codes.shape[1]
    shapes = codes.shape == (parts_of(columns, BLOCK), depth, BLOCK // 2) and scales.shape[2] == 2
    _check(x, codes, scales, tile, shapes and is_certain(x.shape[1] == depth) and not (groups and depth % groups))
    y = torch.empty((x.shape[0], columns), dtype=x.dtype, device=x.device)
    if is_dropping():
        return y
    group = depth // groups if groups else 1
    step = min(MAX_DEPTH, max(MIN_DEPTH, power_of_two(group)))
    group_steps = parts_of(group, step)
    grid = (codes.shape[0], parts_of(x.shape[0], tile))
    tensors = {"x": as_rows(x), "codes": codes.contiguous(), "scales": scales.contiguous()}
    sizes = {"rows": x.shape[0], "columns": columns, "depth": depth, "group": group, "group_steps": group_steps}
    arguments = {**tensors, **sizes, "TILE": tile, "STEP": step}
    launch_in_parts(int4_linear_kernel, grid, groups * group_steps, y, is_split=tile == FEW, **arguments)
    return y


def _check(x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor, tile: int, is_valid: bool) -> None:
    """Raise KernelRefuses unless `is_valid` is True, x is a matrix, and the tile is one of `TILES`."""
    if not is_valid or x.ndim != MATRIX or tile not in TILES:
        raise KernelRefuses(
            f"a product with quantized weights got x, codes and scales of {describe(x, codes, scales)}, tile={tile}",
            fix=f"pass x: (n, depth), codes and scales as the quantized layers store them, and a tile of {TILES}",
        )
