"""Weights as integers: 8 bits with a scale for each row, or 4 bits with a scale and a zero point for each group.

8 bits are symmetric: `scale = max(|row|) / 127` and `code = round(weight / scale)`. 4 bits are asymmetric over the
range of the group, including zero: `scale = (max - min) / 15`, and `weight = (code - 8) * scale + zero` (Jacob et al.,
2018, arXiv:1712.05877, with the zero point as a float, which PyTorch's kernel requires). Scales and zeros are rounded
to bfloat16, which PyTorch's kernels for the CPU require, before weights are divided by them. This rounding is therefore
part of the quantization, and adds no further error.

A scale for a whole row loses most precision if one column is much larger than the others. `column_factors` equalizes
the columns of a weight, for inputs that stay floats; `rotate` equalizes the columns of weights and of inputs, if both
become integers (QuaRot: Ashkboos et al., 2024, arXiv:2404.00456).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

SMALLEST_SCALE = 1e-12  # the smallest scale, which a row of zeros has
LARGEST_CODE = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
BLOCK = 64  # the number of rows whose codes are stored together; a byte has the codes of row i and row i + 32
ELEMENTS_AT_ONCE = 1 << 20  # the number of elements that are quantized at once
LEVELS = 15  # the largest 4-bit code: the number of steps of the scale in a group's range
MIDDLE = 8  # the code of the zero point
MAX_ROTATED_COLUMNS = 32  # the largest number of columns that are rotated together

RANGE_FACTORS = tuple(1 - step / 20 for step in range(13))  # factors of a group's range, down to two fifths


def quantize_rows(
    weight: Tensor, dtype: torch.dtype = torch.int8, change: Callable[[Tensor], Tensor] = lambda rows: rows
) -> tuple[Tensor, Tensor]:
    """Return weights (rows, columns) as codes of `dtype` (int8 or float8_e4m3fn) and bfloat16 scales (rows,).

    The rows are changed and quantized in blocks, so that a large weight needs no full copies in float32.
    """
    codes, scales = zip(*(_quantize_block(change(block), dtype) for block in row_blocks(weight)), strict=True)
    return torch.cat(codes), torch.cat(scales)


def row_blocks(weight: Tensor, multiple: int = 1) -> tuple[Tensor, ...]:
    """Return a weight (rows, columns) in blocks of about a million elements.

    The block size is a multiple of `multiple`.
    """
    rows = ELEMENTS_AT_ONCE // max(weight.shape[1], 1) // multiple * multiple
    return torch.split(weight, max(multiple, rows))


def _quantize_block(weight: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    wide = weight.detach().float().contiguous()
    scales = (wide.abs().amax(1) / LARGEST_CODE[dtype]).clamp(min=SMALLEST_SCALE).bfloat16()
    codes = (wide / scales.float()[:, None]).clamp(-LARGEST_CODE[dtype], LARGEST_CODE[dtype])
    return (codes.round() if dtype == torch.int8 else codes).to(dtype), scales


def column_factors(weight: Tensor) -> Tensor:
    """Return powers of two (columns,) in bfloat16 to divide columns by; inputs are multiplied by them.

    A column's factor is near the square root of the column's root mean square, relative to the other columns. The
    factors are powers of two, so inputs lose no digits.
    """
    squares = [block.detach().float().square().sum(0, dtype=torch.float64) for block in row_blocks(weight)]
    exponents = (torch.stack(squares).sum(0) / len(weight)).float().clamp(min=SMALLEST_SCALE).log2() / 4
    return (exponents - exponents.mean()).round().exp2().bfloat16()


def rotation(columns: int) -> Tensor:
    """Return the matrix (size, size) that rotates columns: Hadamard's, which is orthogonal and its own inverse.

    `size` is the largest power of two that divides the columns, and at most `MAX_ROTATED_COLUMNS`.
    """
    matrix = torch.ones(1, 1, device="cpu")
    while len(matrix) < math.gcd(columns, MAX_ROTATED_COLUMNS):
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    return matrix / math.sqrt(len(matrix))


def rotate(x: Tensor, matrix: Tensor) -> Tensor:
    """Return rows (n, columns) with each group of columns rotated, which spreads each column over its group."""
    return (x.reshape(-1, len(matrix)) @ matrix).view(x.shape)


def quantize_groups(weight: Tensor, group_size: int, importance: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return weights (rows, columns) as 4-bit codes (rows, columns) in uint8, and bfloat16 scales and zeros.

    Scales and zeros have the shape (columns / group_size, rows, 2). `importance` (columns,) is the mean square of each
    column's inputs. If it is given, the range of each group is shrunk by the factor of `RANGE_FACTORS` with the least
    weighted square error: a few weights at the edges are clipped, and all other weights are rounded less.
    """
    blocks = (_quantize_groups(block, group_size, importance) for block in row_blocks(weight))
    codes, scales_and_zeros = zip(*blocks, strict=True)
    return torch.cat(codes), torch.cat(scales_and_zeros, 1)


def _quantize_groups(weight: Tensor, group_size: int, importance: Tensor | None) -> tuple[Tensor, Tensor]:
    groups = weight.detach().float().reshape(len(weight), -1, group_size)
    low, high = groups.amin(2, keepdim=True).clamp(max=0), groups.amax(2, keepdim=True).clamp(min=0)
    best = _round_to_range(groups, low, high)
    if importance is not None:
        column_weights = importance.float().clamp(min=SMALLEST_SCALE).view(-1, group_size)
        least = _error(groups, *best, column_weights)
        for shrink in RANGE_FACTORS[1:]:
            candidate = _round_to_range(groups, low * shrink, high * shrink)
            error = _error(groups, *candidate, column_weights)
            better = error < least
            best = tuple(torch.where(better, new, old) for new, old in zip(candidate, best, strict=True))  # type: ignore[assignment]
            least = torch.where(better, error, least)
    codes, scales, zeros = best
    return codes.flatten(1).to(torch.uint8), torch.cat([scales, zeros], 2).transpose(0, 1).bfloat16().contiguous()


def _round_to_range(groups: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the codes of groups for the given ranges, and scales and zeros rounded to bfloat16, all in float32."""
    scales = ((high - low) / LEVELS).clamp(min=SMALLEST_SCALE).bfloat16().float()
    zeros = (low + scales * MIDDLE).bfloat16().float()
    return ((groups - zeros) / scales + MIDDLE).round().clamp(0, LEVELS), scales, zeros


def _error(groups: Tensor, codes: Tensor, scales: Tensor, zeros: Tensor, column_weights: Tensor) -> Tensor:
    """Return the square error of each group, with columns weighted by `column_weights`."""
    difference = (codes - MIDDLE) * scales + zeros - groups
    return (difference.square() * column_weights).sum(2, keepdim=True)


def pack(codes: Tensor) -> Tensor:
    """Return 4-bit codes (rows, columns) as bytes (rows / 64, columns, 32), padded with rows of zeros to whole blocks.

    This is the layout of PyTorch's kernel on processors with AVX-512 (`_convert_weight_to_int4pack_for_cpu`).
    """
    return torch.cat([_pack(block) for block in row_blocks(codes, BLOCK)])


def _pack(codes: Tensor) -> Tensor:
    padded = torch.nn.functional.pad(codes, (0, 0, 0, -codes.shape[0] % BLOCK))
    low, high = padded.view(-1, 2, BLOCK // 2, codes.shape[1]).unbind(1)
    return (low | (high << 4)).transpose(1, 2).contiguous()


def unpack(blocks: Tensor) -> Tensor:
    """Return the codes of packed blocks as (rows, columns) in uint8, including the padding rows of zeros."""
    halves = torch.stack((blocks & 15, blocks >> 4), 1)  # (blocks, halves, columns, 32)
    return halves.transpose(2, 3).flatten(0, 2)


def dequantize_groups(codes: Tensor, scales_and_zeros: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weights (rows, columns) that codes and their scales and zeros represent, in `dtype`."""
    scales, zeros = scales_and_zeros.to(dtype).transpose(0, 1).unsqueeze(2).unbind(3)
    groups = codes.reshape(*scales.shape[:2], -1).to(dtype)
    return ((groups - MIDDLE) * scales + zeros).flatten(1)
