"""Tensors as rows, the sizes of blocks, and launches of Thunder's kernels over rows and columns."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true

from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.triton.launch import Launch

LONGEST_BLOCK = 4096  # elements of a row at once: sixteen for each thread, in eight warps
MATRIX = 2  # dimensions
FLOATS = frozenset({torch.float32, torch.bfloat16, torch.float16})


def as_rows(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as (rows, columns) with contiguous columns; a view if the strides allow it."""
    rows = tensor.reshape(rows_of(tensor), tensor.shape[-1]) if tensor.ndim != MATRIX else tensor
    columns = tensor.shape[-1]
    return rows if columns < 2 or rows.stride(1) == 1 else rows.contiguous()


def rows_of(tensor: torch.Tensor) -> int:
    """Return the number of rows of a tensor."""
    if tensor.ndim == 0:
        raise KernelRefuses("a kernel over rows got a tensor without dimensions", fix="pass a tensor with a dimension")
    return math.prod(tensor.shape[:-1])


def is_certain(condition: bool | torch.SymBool) -> bool:
    """Whether a condition on sizes holds, for all values of symbolic sizes; the check adds no guard."""
    return bool(statically_known_true(condition))


def power_of_two(number: int) -> int:
    """Return the smallest power of two that is at least a number; 1 for 0."""
    return 1 << (max(int(number), 1) - 1).bit_length()


def parts_of(number: int, size: int) -> int:
    """Return `number / size`, rounded up."""
    return -(-number // size)


def block_of(columns: int, longest: int = LONGEST_BLOCK) -> int:
    """Return the number of columns of a block: a power of two, at most `longest`, that covers a shorter row."""
    return min(power_of_two(columns), longest)


def warps_of(block: int) -> int:
    """Return the number of warps for a block: sixteen elements for each thread, one to eight warps."""
    return max(1, min(8, block // 512))


def check_floats(**tensors: torch.Tensor | None) -> None:
    """Raise KernelRefuses unless each tensor has a dtype that Thunder's kernels support."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.dtype not in FLOATS:
            raise KernelRefuses(
                f"{name} is {tensor.dtype}; the kernel takes float32, bfloat16 and float16",
                fix=f"convert {name}, or leave out the executor 'triton'",
            )


def describe(*tensors: torch.Tensor) -> str:
    """Describe shapes and dtypes, for a message."""
    return ", ".join(f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}" for tensor in tensors)


STRIDE = "_stride"


def launch(kernel: Any, grid: tuple[int, ...], warps: int, *, stages: int = 0, **arguments_by_name: Any) -> None:
    """Launch a kernel with arguments by the names of its parameters; arguments of other names are ignored.

    A parameter `NAME_stride` is the distance between the rows of the tensor NAME, or 0 if NAME is None or a scalar.
    """
    numbers, constants = _parameters(kernel.fn)
    arguments = {
        name: arguments_by_name[name]
        if name in arguments_by_name
        else _stride(arguments_by_name[name.removesuffix(STRIDE)])
        for name in numbers
    }
    Launch(kernel, arguments, {name: arguments_by_name[name] for name in constants}, grid, warps, stages).run()


def launch_over_rows(kernel: Any, rows: int, columns: int, **arguments_by_name: Any) -> None:
    """Launch a kernel with a thread block for each row, which processes `BLOCK` columns at a time."""
    block = block_of(columns)
    launch(kernel, (rows if columns else 0,), warps_of(block), columns=columns, BLOCK=block, **arguments_by_name)


def launch_over_columns(
    kernel: Any, rows: int, columns: int, longest: int, warps: Callable[[int], int], **arguments_by_name: Any
) -> None:
    """Launch a kernel with a thread block for each block of each row; a block has `BLOCK` columns, a row `blocks`."""
    block = block_of(columns, longest)
    blocks = parts_of(columns, block)
    launch(kernel, (rows * blocks,), warps(block), columns=columns, blocks=blocks, BLOCK=block, **arguments_by_name)


@cache
def _parameters(function: Callable[..., Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a kernel's parameters: the passed ones, and the compiled-in constants."""
    kinds = {
        name: kind == "tl.constexpr" for name, kind in inspect.get_annotations(function).items() if name != "return"
    }
    return tuple(name for name in kinds if not kinds[name]), tuple(name for name in kinds if kinds[name])


def _stride(tensor: torch.Tensor | None) -> int:
    return 0 if tensor is None or not tensor.ndim else tensor.stride(0)
