"""Rotary embedding of queries and keys, and writes of keys and values into a static cache, in one launch.

The rotation is that of `thunder_executors.triton.rotary`. The cache has a slot for each token of a sequence. New keys
and values are written in place, into consecutive slots; the kernel reads the index of the first slot from GPU memory.
For a slot outside of the cache, the rotated queries are NaN and nothing is written; PyTorch stops the program instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.triton.launch import is_dropping
from thunder_executors.triton.operations import operator
from thunder_executors.triton.rotary import MAX_HEADS, block_of_heads, output_like, rotate_heads
from thunder_executors.triton.rotary import reference as rotated
from thunder_executors.triton.rows import check_floats, describe, is_certain, launch, parts_of, power_of_two, warps_of

AT_HEADS, AT_POSITIONS = 1, 2  # dimensions


@triton.jit
def copy_heads(
    x: tl.tensor,
    y: tl.tensor,
    x_head: tl.int64,
    y_head: tl.int64,
    first: tl.int32,
    heads: tl.int32,
    width: tl.int32,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Copy some heads at one position."""
    head, column, inside = block_of_heads(first, heads, width, HEADS, WIDTH)
    values = tl.load(x + head * x_head + column, inside, 0.0)
    tl.store(y + head * y_head + column, values.to(y.dtype.element_ty), inside)


@triton.jit
def fill_heads_with_nan(
    y: tl.tensor,
    y_head: tl.int64,
    first: tl.int32,
    heads: tl.int32,
    width: tl.int32,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
) -> None:
    """Write NaN into some heads at one position."""
    head, column, inside = block_of_heads(first, heads, width, HEADS, WIDTH)
    nan = tl.full([HEADS, WIDTH], float("nan"), tl.float32).to(y.dtype.element_ty)
    tl.store(y + head * y_head + column, nan, inside)


@triton.jit
def rotary_into_cache_kernel(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    keys: tl.tensor,
    values: tl.tensor,
    start: tl.tensor,
    q_out: tl.tensor,
    q_batch: tl.int64,
    q_head: tl.int64,
    q_position: tl.int64,
    k_batch: tl.int64,
    k_head: tl.int64,
    k_position: tl.int64,
    v_batch: tl.int64,
    v_head: tl.int64,
    v_position: tl.int64,
    cos_batch: tl.int64,
    cos_position: tl.int64,
    sin_batch: tl.int64,
    sin_position: tl.int64,
    keys_batch: tl.int64,
    keys_head: tl.int64,
    keys_position: tl.int64,
    values_batch: tl.int64,
    values_head: tl.int64,
    values_position: tl.int64,
    q_out_batch: tl.int64,
    q_out_head: tl.int64,
    q_out_position: tl.int64,
    positions: tl.int32,
    slots: tl.int32,
    q_heads: tl.int32,
    k_heads: tl.int32,
    half: tl.int32,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    """Process some heads of q, of k or of v, at one position of one sequence."""
    batch = (tl.program_id(0) // positions).to(tl.int64)
    position = (tl.program_id(0) % positions).to(tl.int64)
    block = tl.program_id(1)
    slot = tl.load(start) + position
    is_inside = (slot >= 0) & (slot < slots)
    q_blocks = tl.cdiv(q_heads, HEADS)
    k_blocks = tl.cdiv(k_heads, HEADS)
    written = tl.where(is_inside, k_heads, 0)
    cos += batch * cos_batch + position * cos_position
    sin += batch * sin_batch + position * sin_position
    if block < q_blocks:
        x = q + batch * q_batch + position * q_position
        y = q_out + batch * q_out_batch + position * q_out_position
        if is_inside:
            rotate_heads(x, cos, sin, y, q_head, q_out_head, block * HEADS, q_heads, half, False, HEADS, HALF)
        else:
            fill_heads_with_nan(y, q_out_head, block * HEADS, q_heads, 2 * half, HEADS, 2 * HALF)
    elif block < q_blocks + k_blocks:
        x = k + batch * k_batch + position * k_position
        y = keys + batch * keys_batch + slot * keys_position
        first = (block - q_blocks) * HEADS
        rotate_heads(x, cos, sin, y, k_head, keys_head, first, written, half, False, HEADS, HALF)
    else:
        x = v + batch * v_batch + position * v_position
        y = values + batch * values_batch + slot * values_position
        first = (block - q_blocks - k_blocks) * HEADS
        copy_heads(x, y, v_head, values_head, first, written, 2 * half, HEADS, 2 * HALF)


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    start: torch.Tensor,
) -> torch.Tensor:
    """Compute Hugging Face's apply_rotary_pos_emb, and the writes of its StaticCache."""
    turned, turned_keys = rotated(q, k, cos, sin)
    at = torch.arange(k.shape[AT_POSITIONS], device=k.device) + start
    keys.index_copy_(AT_POSITIONS, at, turned_keys.to(keys.dtype))
    values.index_copy_(AT_POSITIONS, at, v.to(values.dtype))
    return turned


@operator(reference, mutates=("keys", "values"))
def rotary_into_cache(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    start: torch.Tensor,
) -> torch.Tensor:
    """Return the rotated q, and write the rotated k, and v, into the caches from the slot `start` on.

    q, k and v are (batch, heads, positions, width), and the caches (batch, heads, slots, width). `start` is an int64 on
    the GPU.
    """
    _check(q, k, v, cos, sin, keys, values, start)
    q, k, v, cos, sin = (tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (q, k, v, cos, sin))
    q_out = output_like(q, q.dtype)
    if is_dropping():
        return q_out
    tensors: dict[str, Any] = {"q": q, "k": k, "v": v, "keys": keys, "values": values, "q_out": q_out}
    tables: dict[str, Any] = {"cos": cos, "sin": sin}
    width = q.shape[3]
    most = min(MAX_HEADS, power_of_two(max(q.shape[AT_HEADS], k.shape[AT_HEADS], 1)))
    half = power_of_two(max(width // 2, 1))
    launch(
        rotary_into_cache_kernel,
        (q.shape[0] * q.shape[AT_POSITIONS] if width else 0, sum(parts_of(x.shape[AT_HEADS], most) for x in (q, k, v))),
        warps_of(most * half),
        **tensors,
        **tables,
        start=start,
        **_strides(tensors, tables),
        positions=q.shape[AT_POSITIONS],
        slots=keys.shape[AT_POSITIONS],
        q_heads=q.shape[AT_HEADS],
        k_heads=k.shape[AT_HEADS],
        half=width // 2,
        HEADS=most,
        HALF=half,
    )
    return q_out


def _strides(tensors: Mapping[str, torch.Tensor], tables: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return the strides that the kernel takes, by name. The batch stride of a table for all sequences is 0."""
    return {
        **{f"{name}_batch": tensor.stride(0) for name, tensor in tensors.items()},
        **{f"{name}_head": tensor.stride(AT_HEADS) for name, tensor in tensors.items()},
        **{f"{name}_position": tensor.stride(AT_POSITIONS) for name, tensor in tensors.items()},
        **{f"{name}_batch": table.stride(0) if table.shape[0] > 1 else 0 for name, table in tables.items()},
        **{f"{name}_position": table.stride(1) for name, table in tables.items()},
    }


def _check(*tensors: Any) -> None:
    q, k, v, cos, sin, keys, values, start = tensors
    check_floats(q=q, k=k, v=v, cos=cos, sin=sin, keys=keys, values=values)
    table, size = (q.shape[AT_POSITIONS], q.shape[3]), (q.shape[0], q.shape[AT_POSITIONS], q.shape[3])
    fits = (
        all(tensor.ndim == 4 for tensor in (q, k, v, keys, values))
        and q.shape[3] % 2 == 0
        and k.shape == v.shape
        and (k.shape[0], k.shape[AT_POSITIONS], k.shape[3]) == size
        and keys.shape == values.shape
        and (keys.shape[0], keys.shape[AT_HEADS], keys.shape[3]) == (k.shape[0], k.shape[AT_HEADS], k.shape[3])
        and all(tensor.ndim == 3 and tuple(tensor.shape[1:]) == table for tensor in (cos, sin))
        and all(is_certain(tensor.shape[0] == 1) or tensor.shape[0] == q.shape[0] for tensor in (cos, sin))
        and keys.stride(-1) == values.stride(-1) == 1
        and len({tensor.dtype for tensor in tensors[:-1]}) == 1
        and (start.dtype, start.ndim) == (torch.int64, 0)
    )
    if not fits:
        raise KernelRefuses(
            f"rotary embedding with a cache got {describe(*tensors)}",
            fix="pass q, k, v: (batch, heads, positions, even width), cos, sin: (batch or 1, positions, width), and "
            "caches (batch, heads, slots, width) with dense rows, all in one dtype, and an int64 without dimensions",
        )
