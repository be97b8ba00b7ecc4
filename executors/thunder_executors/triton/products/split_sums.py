"""Products whose sums are divided among thread blocks (split-K), and what a kernel does with a finished sum.

With few rows, the result of a product has too few tiles to keep a GPU busy. The sums are then divided: several thread
blocks compute parts of the same sums, and a second kernel adds the parts in a fixed order. The kernel that finishes the
sums adds a bias, computes an activation, and adds a residual. Values are rounded as by the separate operations: the
sum with the bias, the activation, and the sum with the residual.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from thunder_executors.triton.gated import factor_and_slope
from thunder_executors.triton.launch import INTERPRETED
from thunder_executors.triton.rows import launch, parts_of

FEW = 16  # rows of the smallest tile of Tensor Cores; the sums are divided only for tiles of up to this size
THREAD_BLOCKS = 264  # thread blocks that keep a Hopper GPU busy: two on each of 132 multiprocessors
MIN_STEPS = 2  # minimum steps of a thread block: it loads the numbers of the next step while it multiplies
WARPS = 4
SUM_BLOCK = 256  # elements of y for each thread block of the kernel that adds partial sums
UNFINISHED = {"bias": None, "residual": None, "ACTIVATION": ""}  # the arguments of a kernel that only sums
# Triton's interpreter stores bfloat16 numbers as 16-bit integers, and would multiply these.
INTERPRETS = tl.constexpr(INTERPRETED)


@triton.jit
def multiply(values: tl.tensor, numbers: tl.tensor) -> tl.tensor:
    """Return the matrix product of rows and numbers in float32; the numbers are converted to the dtype of the rows."""
    if INTERPRETS:
        products = tl.dot(values.to(tl.float32), numbers.to(tl.float32), input_precision="ieee")
    else:
        products = tl.dot(values, numbers.to(values.dtype), input_precision="ieee")
    return products


@triton.jit
def activate(x: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    """Return an activation of numbers in float32."""
    if ACTIVATION == "relu":
        result = tl.where(x < 0.0, 0.0, x)
    else:
        factor, _ = factor_and_slope(x, ACTIVATION)
        result = x * factor
    return result


@triton.jit
def finish(
    total: tl.tensor, residual: tl.tensor, inside: tl.tensor, y: tl.tensor, ACTIVATION: tl.constexpr
) -> tl.tensor:
    """Return sums after the activation and the addition of the residual at pointers, in the dtype of y."""
    if ACTIVATION != "":
        total = activate(total.to(y.dtype.element_ty).to(tl.float32), ACTIVATION)
    if residual is not None:
        total = total.to(y.dtype.element_ty).to(tl.float32) + tl.load(residual, inside, 0.0).to(tl.float32)
    return total.to(y.dtype.element_ty)


@triton.jit
def sum_of_parts_kernel(
    partial: tl.tensor,
    bias: tl.tensor,
    residual: tl.tensor,
    y: tl.tensor,
    residual_stride: tl.int64,
    parts: tl.int32,
    numbers: tl.int32,
    columns: tl.int32,
    ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Compute a block of the result: the sum of the partial sums of all parts, in their order, which is finished."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < numbers
    total = tl.zeros([BLOCK], tl.float32)
    for part in range(parts):
        total += tl.load(partial + tl.cast(part, tl.int64) * numbers + at, inside, 0.0)
    if bias is not None:
        total += tl.load(bias + at % columns, inside, 0.0).to(tl.float32)
    if residual is not None:
        residual += (at // columns).to(tl.int64) * residual_stride + at % columns
    tl.store(y + at, finish(total, residual, inside, y, ACTIVATION), inside)


def launch_in_parts(
    kernel: Any,
    grid: tuple[int, int],
    steps: int,
    y: torch.Tensor,
    *,
    is_split: bool,
    warps: int = WARPS,
    stages: int = 0,
    **arguments: Any,
) -> None:
    """Launch a kernel that computes y [..., columns] in `steps` steps over the depth, divided into parts if `is_split`.

    The third dimension of the grid is the part, of which each thread block computes `steps` steps. The arguments of
    `UNFINISHED` may be given; the kernel gets them if the sums are not divided.
    """
    arguments = {**UNFINISHED, **arguments}
    part_steps = steps_of_part(grid[0] * grid[1], steps) if is_split else max(steps, 1)
    parts = max(1, parts_of(steps, part_steps))
    if parts == 1:
        launch(kernel, (*grid, 1), warps, stages=stages, y=y, steps=part_steps, **arguments)
        return
    partial = torch.empty((parts, *y.shape), dtype=torch.float32, device=y.device)
    unfinished = {**arguments, **UNFINISHED}
    launch(kernel, (*grid, parts), warps, stages=stages, y=partial, steps=part_steps, **unfinished)
    launch(
        sum_of_parts_kernel,
        (parts_of(y.numel(), SUM_BLOCK),),
        1,
        partial=partial,
        y=y,
        parts=parts,
        numbers=y.numel(),
        columns=y.shape[-1],
        BLOCK=SUM_BLOCK,
        **{name: arguments[name] for name in UNFINISHED},
    )


def steps_of_part(tiles: int, steps: int) -> int:
    """Return the number of steps of each part of the depth, so that the thread blocks of all parts keep a GPU busy.

    `tiles` is the number of tiles of the result, and `steps` the number of steps of the whole depth.
    """
    parts = max(1, THREAD_BLOCKS // max(tiles, 1))
    return max(MIN_STEPS, parts_of(steps, parts))
