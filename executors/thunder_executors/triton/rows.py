"""Tensors as rows: how our kernels see shapes, and how large a block of a row one program takes."""

from __future__ import annotations

import math

import torch
import triton

from thunder_core.errors import KernelRefuses

LONGEST_BLOCK = 4096  # elements of a row at once: sixteen a thread, in eight warps
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def as_rows(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as (rows, columns) with columns side by side in memory; a view wherever strides allow one."""
    if tensor.ndim == 0:
        raise KernelRefuses("a kernel over rows was given a tensor without dimensions", fix="give it one dimension")
    columns = tensor.shape[-1]
    rows = tensor.reshape(math.prod(tensor.shape[:-1]), columns)
    return rows if columns < 2 or rows.stride(1) == 1 else rows.contiguous()


def block_of(columns: int, longest: int = LONGEST_BLOCK) -> int:
    """How many columns one step takes: all of a short row, a power of two."""
    return min(int(triton.next_power_of_2(max(columns, 1))), longest)


def warps_of(block: int) -> int:
    """The number of warps for a block: sixteen elements a thread, one to eight warps."""
    return max(1, min(8, block // 512))


def check(holds: bool, what: str, fix: str) -> None:
    """Raise KernelRefuses unless something holds."""
    if not holds:
        raise KernelRefuses(what, fix=fix)


def check_floats(**tensors: torch.Tensor | None) -> None:
    """Raise KernelRefuses unless each tensor has a dtype that our kernels compute with."""
    for name, tensor in tensors.items():
        check(
            tensor is None or tensor.dtype in FLOATS,
            f"{name} is {tensor.dtype if tensor is not None else None}; the kernel takes float32, bfloat16 and float16",
            f"convert {name}, or leave the executor 'triton' out",
        )
