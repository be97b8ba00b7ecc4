"""Rotary position embedding of queries and keys at once, Su et al., 2021 (arXiv:2104.09864).

In Hugging Face's convention (`apply_rotary_pos_emb`, `rotate_half`), the two numbers of a rotated pair are half a head
apart: `y = x * cos + cat(-x2, x1) * sin`, where x1 and x2 are the halves of x. Therefore `y1 = x1 * cos1 - x2 * sin1`,
`y2 = x2 * cos2 + x1 * sin2`, and in the backward `dx1 = dy1 * cos1 + dy2 * sin2`, `dx2 = dy2 * cos2 - dy1 * sin1`. If
both halves of cos and sin are equal, as in every known model, the backward is the rotation by the opposite angle.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch._prims_common import is_contiguous_or_false

from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.triton.launch import is_dropping
from thunder_executors.triton.operations import operator
from thunder_executors.triton.rows import (
    check_floats,
    describe,
    is_certain,
    launch,
    parts_of,
    power_of_two,
    warps_of,
)

MAX_HEADS = 8  # maximum heads in one thread block, which reads cos and sin once


@triton.jit
def block_of_heads(
    first: tl.int32, heads: tl.int32, width: tl.int32, HEADS: tl.constexpr, WIDTH: tl.constexpr
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return some heads as rows, the columns of a head, and which of these elements exist."""
    head = (first + tl.arange(0, HEADS))[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    return head.to(tl.int64), column, (head < heads) & (column < width)


@triton.jit
def rotate_heads(
    x: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    y: tl.tensor,
    x_head: tl.int64,
    y_head: tl.int64,
    first: tl.int32,
    heads: tl.int32,
    half: tl.int32,
    INVERSE: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    """Rotate some heads at one position."""
    head, column, inside = block_of_heads(first, heads, half, HEADS, HALF)
    cos1 = tl.load(cos + column, column < half, 0.0).to(tl.float32)
    cos2 = tl.load(cos + half + column, column < half, 0.0).to(tl.float32)
    sin1 = tl.load(sin + column, column < half, 0.0).to(tl.float32)
    sin2 = tl.load(sin + half + column, column < half, 0.0).to(tl.float32)
    read = x + head * x_head + column
    x1 = tl.load(read, inside, 0.0).to(tl.float32)
    x2 = tl.load(read + half, inside, 0.0).to(tl.float32)
    if INVERSE:
        y1 = x1 * cos1 + x2 * sin2
        y2 = x2 * cos2 - x1 * sin1
    else:
        y1 = x1 * cos1 - x2 * sin1
        y2 = x2 * cos2 + x1 * sin2
    write = y + head * y_head + column
    tl.store(write, y1.to(y.dtype.element_ty), inside)
    tl.store(write + half, y2.to(y.dtype.element_ty), inside)


@triton.jit
def rotary_kernel(
    q: tl.tensor,
    k: tl.tensor,
    cos: tl.tensor,
    sin: tl.tensor,
    q_out: tl.tensor,
    k_out: tl.tensor,
    q_batch: tl.int64,
    q_head: tl.int64,
    q_position: tl.int64,
    k_batch: tl.int64,
    k_head: tl.int64,
    k_position: tl.int64,
    cos_batch: tl.int64,
    cos_position: tl.int64,
    sin_batch: tl.int64,
    sin_position: tl.int64,
    q_out_batch: tl.int64,
    q_out_head: tl.int64,
    q_out_position: tl.int64,
    k_out_batch: tl.int64,
    k_out_head: tl.int64,
    k_out_position: tl.int64,
    positions: tl.int32,
    q_heads: tl.int32,
    k_heads: tl.int32,
    half: tl.int32,
    INVERSE: tl.constexpr,
    HEADS: tl.constexpr,
    HALF: tl.constexpr,
) -> None:
    """Rotate some heads of q, or some heads of k, at one position of one sequence."""
    batch = (tl.program_id(0) // positions).to(tl.int64)
    position = (tl.program_id(0) % positions).to(tl.int64)
    block = tl.program_id(1)
    q_blocks = tl.cdiv(q_heads, HEADS)
    cos += batch * cos_batch + position * cos_position
    sin += batch * sin_batch + position * sin_position
    if block < q_blocks:
        x = q + batch * q_batch + position * q_position
        y = q_out + batch * q_out_batch + position * q_out_position
        rotate_heads(x, cos, sin, y, q_head, q_out_head, block * HEADS, q_heads, half, INVERSE, HEADS, HALF)
    else:
        x = k + batch * k_batch + position * k_position
        y = k_out + batch * k_out_batch + position * k_out_position
        first = (block - q_blocks) * HEADS
        rotate_heads(x, cos, sin, y, k_head, k_out_head, first, k_heads, half, INVERSE, HEADS, HALF)


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """Exchange the halves of the last dimension, and negate the second half."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def reference(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute Hugging Face's apply_rotary_pos_emb."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def gradient_reference(
    dq: torch.Tensor, dk: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the transpose of the rotation."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return dq * cos - rotate_half(dq * sin), dk * cos - rotate_half(dk * sin)


def _pack(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] < 2 else tensor.contiguous()


def output_like(like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return an empty output with the layout of an input, which the next operation usually transposes back.

    For a single position, whose stride is arbitrary, the output is contiguous, as in PyTorch.
    """
    layout = torch.contiguous_format if is_contiguous_or_false(like) else torch.preserve_format
    return _pack(torch.empty_like(like, dtype=dtype, memory_format=layout))


def _rotate(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int, inverse: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    _check(q, k, cos, sin, unsqueeze_dim)
    q, k, cos, sin = _pack(q), _pack(k), _pack(cos), _pack(sin)
    dtype = torch.promote_types(q.dtype, torch.promote_types(cos.dtype, sin.dtype))
    outputs = output_like(q, dtype), output_like(k, torch.promote_types(k.dtype, dtype))
    if is_dropping():
        return outputs
    tensors: dict[str, Any] = {"q": q, "k": k, "q_out": outputs[0], "k_out": outputs[1]}
    tables: dict[str, Any] = {"cos": cos, "sin": sin}
    heads, position_dim = _dimensions(unsqueeze_dim)
    most = min(MAX_HEADS, power_of_two(max(q.shape[heads], k.shape[heads], 1)))
    width = q.shape[3]
    half = power_of_two(max(width // 2, 1))
    launch(
        rotary_kernel,
        (q.shape[0] * q.shape[position_dim] if width else 0, sum(parts_of(x.shape[heads], most) for x in (q, k))),
        warps_of(most * half),
        **tensors,
        **tables,
        **{f"{name}_batch": x.stride(0) for name, x in tensors.items()},
        **{f"{name}_head": x.stride(heads) for name, x in tensors.items()},
        **{f"{name}_position": x.stride(position_dim) for name, x in tensors.items()},
        **{f"{name}_batch": table.stride(0) if table.shape[0] > 1 else 0 for name, table in tables.items()},
        **{f"{name}_position": table.stride(1) for name, table in tables.items()},
        positions=q.shape[position_dim],
        q_heads=q.shape[heads],
        k_heads=k.shape[heads],
        half=width // 2,
        INVERSE=inverse,
        HEADS=most,
        HALF=half,
    )
    return outputs


def _dimensions(unsqueeze_dim: int) -> tuple[int, int]:
    """Return the dimension of the heads, and the dimension of the positions."""
    return (1, 2) if unsqueeze_dim == 1 else (2, 1)


def _check(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int) -> None:
    check_floats(q=q, k=k, cos=cos, sin=sin)
    if not (q.ndim == k.ndim == 4 and cos.ndim == sin.ndim == 3 and unsqueeze_dim in (1, 2) and q.shape[-1] % 2 == 0):
        raise KernelRefuses(
            f"rotary embedding got {describe(q, k, cos, sin)}, unsqueeze_dim={unsqueeze_dim}",
            fix="pass q, k: (batch, heads, positions, even width), and cos, sin: (batch or 1, positions, width)",
        )
    _, position_dim = _dimensions(unsqueeze_dim)
    size = (q.shape[0], q.shape[position_dim], q.shape[3])
    fit = all(table.shape == ((1, *size[1:]) if is_certain(table.shape[0] == 1) else size) for table in (cos, sin))
    if not fit or (k.shape[0], k.shape[position_dim], k.shape[3]) != size:
        raise KernelRefuses(
            f"rotary embedding got q, k, cos and sin of {describe(q, k, cos, sin)}",
            fix="pass k with the same batch, positions and width, and cos and sin of (batch or 1, positions, width)",
        )


@operator(reference)
def rotary(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate q and k: (batch, heads, positions, width), or (batch, positions, heads, width) with `unsqueeze_dim=2`."""
    return _rotate(q, k, cos, sin, unsqueeze_dim, inverse=False)


@operator(gradient_reference)
def rotary_gradient(
    dq: torch.Tensor, dk: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate the gradients of q and k back."""
    return _rotate(dq, dk, cos, sin, unsqueeze_dim, inverse=True)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    q, k, cos, sin, ctx.unsqueeze_dim = inputs
    ctx.dtypes = q.dtype, k.dtype
    needs_tables = cos.requires_grad or sin.requires_grad
    ctx.save_for_backward(cos, sin, *((q, k) if needs_tables else ()))


def _backward(ctx: Any, dq_out: torch.Tensor, dk_out: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    cos, sin, *inputs = ctx.saved_tensors
    dq, dk = rotary_gradient(dq_out, dk_out, cos, sin, ctx.unsqueeze_dim)
    slopes = list(zip((dq_out, dk_out), inputs, strict=False))
    # No known model needs the tables' gradients, so there is no kernel for them.
    dcos = _table_gradient([dy * x for dy, x in slopes], cos, ctx.unsqueeze_dim)
    dsin = _table_gradient([dy * rotate_half(x) for dy, x in slopes], sin, ctx.unsqueeze_dim)
    return dq.to(ctx.dtypes[0]), dk.to(ctx.dtypes[1]), dcos, dsin, None


def _table_gradient(products: list[torch.Tensor], table: torch.Tensor, heads: int) -> torch.Tensor | None:
    sums = [product.sum(heads).sum_to_size(table.shape) for product in products]
    return torch.stack(sums).sum(0).to(table.dtype) if sums else None


rotary.differentiate(_save, _backward)
