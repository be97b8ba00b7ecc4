"""Row-wise symmetric quantization to int8 and FP8 (E4M3): values and one scale for each row.

`scale = max(|x|) / largest`, `value = round(x / scale)`, with the largest value 127 for int8 and 448 for E4M3
(Micikevicius et al., 2022, arXiv:2209.05433), rounded to nearest, ties to even. `value * scale` is x again, up to
rounding. A row of zeros gets the scale of the smallest maximum (`SMALLEST`); a row with NaN or infinity gets NaN. There
is no derivative. GPUs before compute capability 8.9 convert no numbers to E4M3; PyTorch's operations do it there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from thunder_core.backend.claiming.device_code import target_of_programs
from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.triton.cubin import capability_of
from thunder_executors.triton.driver import architecture
from thunder_executors.triton.launch import is_dropping
from thunder_executors.triton.operations import operator
from thunder_executors.triton.rows import as_rows, check_floats, launch_over_rows, rows_of

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
SMALLEST = 1e-12  # smallest row maximum; far below float16's smallest number
FP8_CAPABILITY = 89  # the lowest compute capability of GPUs that convert numbers to E4M3 (Ada)
ROUNDER = 12582912.0  # 1.5 * 2^23: adding and subtracting it rounds a float32, ties to even


@triton.jit
def quantize_rows_kernel(
    x: tl.tensor,
    values: tl.tensor,
    scales: tl.tensor,
    x_stride: tl.int64,
    columns: tl.int32,
    LARGEST: tl.constexpr,
    SMALLEST: tl.constexpr,
    ROUNDER: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Process one row: its largest magnitude, then its values; without a ROUNDER, the conversion rounds."""
    row = tl.program_id(0).to(tl.int64)
    highest = tl.zeros([BLOCK], tl.float32)
    poison = tl.zeros([BLOCK], tl.float32)  # NaN if a value is not finite, which a maximum hides
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        value = tl.load(x + row * x_stride + column, column < columns, 0.0, eviction_policy="evict_last").to(tl.float32)
        highest = tl.maximum(highest, tl.abs(value))
        poison += value - value
    highest = tl.maximum(tl.max(highest), SMALLEST) + tl.sum(poison)
    tl.store(scales + row, tl.div_rn(highest, LARGEST))
    factor = tl.div_rn(LARGEST, highest)
    for start in range(0, columns, BLOCK):
        column = start + tl.arange(0, BLOCK)
        inside = column < columns
        value = tl.load(x + row * x_stride + column, inside, 0.0, eviction_policy="evict_first").to(tl.float32) * factor
        if ROUNDER is not None:
            value = (value + ROUNDER) - ROUNDER
        tl.store(values + row * columns + column, value.to(values.dtype.element_ty), inside)


def reference(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the formulas in float32."""
    wide = x.float()
    highest = wide.abs().amax(-1, keepdim=True).clamp(min=SMALLEST) if x.shape[-1] else wide.sum(-1, keepdim=True)
    values = wide * (LARGEST[dtype] / highest)
    return (values.round() if dtype == torch.int8 else values).to(dtype), highest / LARGEST[dtype]


def converts_to(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the GPU of the programs converts numbers to a dtype; Triton's interpreter converts to all."""
    if dtype != torch.float8_e4m3fn or device.type != "cuda":
        return True
    target = target_of_programs()
    if not target and not torch.cuda.is_available():
        return True  # launches are recorded for an absent GPU of unknown architecture
    return capability_of(target or architecture(device)) >= FP8_CAPABILITY


@operator(reference)
def quantize_rows(x: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return rows (..., columns) as values of `dtype`, and float32 scales (..., 1); both are contiguous.

    `dtype` is int8 or float8_e4m3fn.
    """
    check_floats(x=x)
    rows_of(x)
    if dtype not in LARGEST:
        raise KernelRefuses(f"rows cannot be quantized to {dtype}", fix="use torch.int8 or torch.float8_e4m3fn")
    values = torch.empty(x.shape, dtype=dtype, device=x.device)
    scales = torch.zeros((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    if is_dropping():
        return values, scales
    if not converts_to(dtype, x.device):
        own_values, own_scales = reference(x, dtype)
        return own_values.contiguous(), own_scales.contiguous()
    rows = as_rows(x)
    columns = rows.shape[1]
    launch_over_rows(
        quantize_rows_kernel,
        rows.shape[0],
        columns,
        x=rows,
        values=values,
        scales=scales,
        LARGEST=LARGEST[dtype],
        SMALLEST=SMALLEST,
        ROUNDER=ROUNDER if dtype == torch.int8 else None,
    )
    return values, scales
