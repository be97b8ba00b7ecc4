"""NormalFloat in 4 bits: codes of the quantiles of a normal distribution, scaled by each group's largest magnitude.

The values are from Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs", 2023 (arXiv:2305.14314), appendix
E.
"""

from __future__ import annotations

import torch
from torch import Tensor

from thunder_core.backend.quantization.integers import row_blocks

VALUES = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
SMALLEST_SCALE = 1e-12  # the smallest scale, which a group of zeros has


def quantize_normal(weight: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """Return weights (rows, columns) as two codes a byte (rows, columns / 2), and bfloat16 scales (rows, groups).

    A byte has the codes of column i and column i + columns / 2.
    """
    codes, scales = zip(*(_quantize_normal(block, group_size) for block in row_blocks(weight)), strict=True)
    return torch.cat(codes), torch.cat(scales)


def _quantize_normal(weight: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    groups = weight.detach().float().contiguous().view(len(weight), -1, group_size)
    scales = groups.abs().amax(2).clamp(min=SMALLEST_SCALE).bfloat16()
    table = torch.tensor(VALUES, device=weight.device)
    edges = (table[1:] + table[:-1]) / 2
    codes = torch.bucketize(groups / scales.float().unsqueeze(2), edges).to(torch.uint8).flatten(1)
    low, high = codes.chunk(2, 1)
    return low | (high << 4), scales


def dequantize_normal(codes: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the weights (rows, columns) that codes and scales represent, in `dtype`."""
    table = torch.tensor(VALUES, dtype=dtype, device=codes.device)
    values = table[torch.cat((codes & 15, codes >> 4), 1).int()]
    groups = values.view(*scales.shape, -1)
    return (groups * scales.to(dtype).unsqueeze(2)).flatten(1)
