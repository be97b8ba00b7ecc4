"""Attention of few queries to a long cache, as in decoding a token: the keys are divided among thread blocks.

All queries of a sequence attend to the same keys: the keys that a mask shows, up to a last key. The kernel reads the
mask, or the index of the last key, from GPU memory. It reads no block of keys in which all keys are hidden, so that a
token reads the filled part of a static cache, whose size is constant. No value decides about a launch on the host, so
the launches can be part of a CUDA graph.

The blocks of keys are dealt out to the thread blocks in turn, so each thread block has a share of the filled keys. Each
computes its softmax relative to its own largest score, with the sum and the weighted values, as in Flash-Decoding
(https://crfm.stanford.edu/2023/10/12/flashdecoding.html). The last thread block of a group of queries that finishes
combines these partial results. It knows that it is the last one by a counter, which each thread block increments after
it has written its results. If there are many partial results, a second kernel combines them, which has a thread block
for each query. Scores and sums are float32. The weights of the values are rounded to the dtype of the values, as in
FlashAttention.

In a program for all sizes, each call computes the number of thread blocks and the memory of the partial results from
its own sizes. The constants of the machine code do not depend on the batch and on the number of keys, so two variants
of the kernel serve all sizes: with one part, and with several parts.

A query that sees no key returns zeros, like PyTorch. A hidden key has no influence, even if it is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl

from thunder_core.foundation.errors import KernelRefuses
from thunder_executors.cudagraphs.arrivals import arrival_counters
from thunder_executors.triton.attention.blocks_of_keys import attend, filled_keys, read_queries, steps_with_visible_keys
from thunder_executors.triton.attention.combination import (
    MAX_BYTES_OF_LAST_BLOCK,
    combine_attention_kernel,
    combine_if_last,
    parts_at_once,
    write_part,
    write_rows,
)
from thunder_executors.triton.launch import is_dropping, is_recording_variants
from thunder_executors.triton.operations import operator
from thunder_executors.triton.products.split_sums import THREAD_BLOCKS
from thunder_executors.triton.rows import check_floats, describe, launch, parts_of, power_of_two

HEADS, POSITIONS = 1, 2  # dimensions
FEWEST_ROWS = 16  # rows, columns and keys of the smallest tile of Tensor Cores
MAX_ROWS = 64  # queries that share a head of keys
TILE_BYTES = 8192  # of the queries of a thread block, and of the keys, or the values, that it reads in a step
MAX_KEYS = 128  # keys in a step
MAX_SCANNED = 16  # blocks of keys whose mask is read at once
WARPS = 4
FLOAT_BYTES = 4  # of a partial result, which is float32
VARIANTS = (1, 3)  # parts that need different machine code: one, and several, for which nothing is assumed


@triton.jit
def decode_attention_kernel(
    q: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    mask: tl.tensor,
    last: tl.tensor,
    tops: tl.tensor,
    sums: tl.tensor,
    partials: tl.tensor,
    arrivals: tl.tensor,
    out: tl.tensor,
    q_batch: tl.int64,
    q_head: tl.int64,
    q_position: tl.int64,
    k_batch: tl.int64,
    k_head: tl.int64,
    k_position: tl.int64,
    v_batch: tl.int64,
    v_head: tl.int64,
    v_position: tl.int64,
    mask_batch: tl.int64,
    last_batch: tl.int64,
    out_batch: tl.int64,
    out_head: tl.int64,
    out_position: tl.int64,
    scale: tl.float32,
    offset: tl.int32,
    heads: tl.int32,
    positions: tl.int32,
    rows: tl.int32,
    keys: tl.int32,
    width: tl.int32,
    value_width: tl.int32,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SCANNED: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    COMBINED_ROWS: tl.constexpr,
    COMBINED: tl.constexpr,
) -> None:
    """Attend with all queries of a head of keys to every n-th block of keys, where n is the number of parts.

    With one part, there are no partial results (`tops` is None). With `out`, the last thread block combines the parts.
    """
    group = tl.program_id(0)
    part = tl.program_id(1)
    parts = tl.num_programs(1)
    batch = (group // heads).to(tl.int64)
    head = (group % heads).to(tl.int64)
    if last is not None:
        last += batch * last_batch
    filled = filled_keys(last, offset, keys)
    if mask is not None:
        mask += batch * mask_batch
    first, end = steps_with_visible_keys(mask, filled, part, parts, KEYS, SCANNED)
    row = tl.arange(0, ROWS)
    q += batch * q_batch + head * (rows // positions) * q_head
    queries = read_queries(q, row, q_head, q_position, positions, rows, width, WIDTH)
    k += batch * k_batch + head * k_head
    v += batch * v_batch + head * v_head
    top, total, weighted = attend(
        queries,
        k,
        v,
        mask,
        k_position,
        v_position,
        scale,
        filled,
        first,
        end,
        part,
        parts,
        width,
        value_width,
        ROWS,
        KEYS,
        WIDTH,
        VALUE_WIDTH,
    )
    if tops is None:
        result = tl.where(total[:, None] == 0.0, 0.0, weighted / total[:, None])
        write_rows(
            result, out, group, row, out_batch, out_head, out_position, heads, positions, rows, value_width, VALUE_WIDTH
        )
    else:
        write_part(
            top,
            total,
            weighted,
            tops,
            sums,
            partials,
            (group.to(tl.int64) * parts + part) * rows + row,
            row < rows,
            end > first,
            value_width,
            VALUE_WIDTH,
        )
        if out is not None:
            combine_if_last(
                arrivals + group,
                tops,
                sums,
                partials,
                out,
                group,
                out_batch,
                out_head,
                out_position,
                heads,
                positions,
                rows,
                parts,
                value_width,
                COMBINED_ROWS,
                COMBINED,
                VALUE_WIDTH,
            )


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    last: torch.Tensor | None = None,
    offset: int = 0,
    scale: float = 1.0,
    transposed: bool = False,
    for_all_sizes: bool = False,
) -> torch.Tensor:
    """Compute PyTorch's scaled_dot_product_attention with a mask of the visible keys."""
    k, v = (tensor.repeat_interleave(q.shape[HEADS] // k.shape[HEADS], HEADS) for tensor in (k, v))
    scores = q @ k.mT * scale
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    if last is not None:
        hidden = torch.arange(k.shape[POSITIONS], device=k.device) > last.view(-1, 1, 1, 1) + offset
        scores = scores.masked_fill(hidden, float("-inf"))
    result: torch.Tensor = torch.ops.aten._safe_softmax(scores, -1) @ v
    return result.transpose(HEADS, POSITIONS).contiguous().transpose(HEADS, POSITIONS) if transposed else result


@operator(reference)
def decode_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    last: torch.Tensor | None = None,
    offset: int = 0,
    scale: float = 1.0,
    transposed: bool = False,
    for_all_sizes: bool = False,
) -> torch.Tensor:
    """Return attention of q (batch, heads, positions, width) to k and v (batch, groups, keys, width).

    A key is visible if the mask (batch or 1, 1, 1, keys) shows it, which is boolean or added to the scores, and if its
    index is at most `last + offset`, where `last` is an int64 for each sequence or for all. With `transposed`, the
    result is a view of a contiguous tensor (batch, positions, heads, width). With `for_all_sizes`, the constants of the
    kernels do not depend on the batch and on the number of keys.
    """
    _check(q, k, v, mask, last)
    batches, q_heads, positions, width = q.shape
    heads, keys, value_width = v.shape[HEADS:]
    sizes = (batches, positions, q_heads, value_width) if transposed else (batches, q_heads, positions, value_width)
    out = torch.empty(sizes, dtype=q.dtype, device=q.device)
    out = out.transpose(HEADS, POSITIONS) if transposed else out
    if is_dropping() or out.numel() == 0:
        return out
    rows = q_heads // heads * positions
    groups = batches * heads
    block = keys_of_step(max(width, value_width), q.element_size())
    parts = parts_of_keys(groups, keys, block)
    arguments = {
        **_inputs(q, k, v, mask, last),
        "offset": offset,
        "scale": float(scale),
        "heads": heads,
        "positions": positions,
        "rows": rows,
        "keys": keys,
        "width": width,
        "value_width": value_width,
        "ROWS": power_of_two(max(rows, FEWEST_ROWS)),
        "KEYS": block,
        "WIDTH": power_of_two(max(width, FEWEST_ROWS)),
        "VALUE_WIDTH": power_of_two(max(value_width, FEWEST_ROWS)),
    }
    for number in VARIANTS if for_all_sizes and is_recording_variants() else (parts,):
        _launch_parts(out, groups, number, parts_of(THREAD_BLOCKS, heads) if for_all_sizes else None, arguments)
    return out


def _launch_parts(
    out: torch.Tensor, groups: int, parts: int, most_parts: int | None, arguments: Mapping[str, Any]
) -> None:
    """Launch the kernel for groups of queries and parts of their keys, and the second kernel if it combines the parts.

    Constants are those for `most_parts`, and for any number of keys; if it is None, they are those for these sizes.
    """
    rows, keys, block, value_tile = (arguments[name] for name in ("rows", "keys", "KEYS", "VALUE_WIDTH"))
    value_width, most = arguments["value_width"], most_parts or parts
    is_combined_later = parts > 1 and most * rows * value_width * FLOAT_BYTES > MAX_BYTES_OF_LAST_BLOCK
    has_counters = parts > 1 and not is_combined_later
    steps = MAX_SCANNED if most_parts else parts_of(parts_of(keys, block), parts)
    shared = {**arguments, **_partial_results(groups, parts, rows, value_width, out.device)}
    launch(
        decode_attention_kernel,
        (groups, parts),
        WARPS,
        **shared,
        **_output(None if is_combined_later else out),
        arrivals=arrival_counters(groups, out.device) if has_counters else None,
        SCANNED=min(power_of_two(steps), MAX_SCANNED),
        COMBINED_ROWS=power_of_two(rows),
        COMBINED=parts_at_once(rows, value_tile, most),
    )
    if is_combined_later:
        launch(
            combine_attention_kernel,
            (groups * rows,),
            WARPS,
            **shared,
            **_output(out),
            parts=parts,
            COMBINED=parts_at_once(1, value_tile, most),
        )


def _partial_results(
    groups: int, parts: int, rows: int, value_width: int, device: torch.device
) -> dict[str, torch.Tensor | None]:
    """Return the memory of the partial results of attention, by name; with one part, there are none."""
    columns = {"tops": 1, "sums": 1, "partials": value_width}
    if parts == 1:
        return dict.fromkeys(columns)
    return {
        name: torch.empty(groups, parts, rows, count, dtype=torch.float32, device=device)
        for name, count in columns.items()
    }


def _output(out: torch.Tensor | None) -> dict[str, Any]:
    """Return the output of a kernel and its strides, by name."""
    strides = dict.fromkeys(("out_batch", "out_head", "out_position"), 0) if out is None else _strides("out", out)
    return {"out": out, **strides}


def is_one_tile(q_shape: Sequence[int], v_shape: Sequence[int], itemsize: int) -> bool:
    """Whether the queries of a group fit into one tile, so that a thread block needs at most 64 KB of shared memory."""
    rows = q_shape[HEADS] // v_shape[HEADS] * q_shape[POSITIONS]
    width = max(q_shape[3], v_shape[3])
    tile = power_of_two(max(rows, FEWEST_ROWS)) * power_of_two(max(width, FEWEST_ROWS)) * itemsize
    return rows <= MAX_ROWS and tile <= TILE_BYTES


def keys_of_step(width: int, itemsize: int) -> int:
    """Return the number of keys of this width that a thread block reads in a step."""
    return max(FEWEST_ROWS, min(MAX_KEYS, TILE_BYTES // (power_of_two(width) * itemsize)))


def parts_of_keys(groups: int, keys: int, block: int) -> int:
    """Return the number of thread blocks among which the keys of each of some groups of queries are divided."""
    return max(1, min(parts_of(keys, block), parts_of(THREAD_BLOCKS, groups)))


def _inputs(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, last: torch.Tensor | None
) -> dict[str, Any]:
    """Return the inputs of the kernel, with dense rows, and their strides, by name."""
    q, k, v = (tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (q, k, v))
    if mask is not None:
        mask = mask if mask.stride(-1) == 1 else mask.contiguous()
        mask = mask.view(torch.uint8) if mask.dtype == torch.bool else mask
    last = None if last is None else last.reshape(-1)
    return {
        "q": q,
        "k": k,
        "v": v,
        "mask": mask,
        "last": last,
        **_strides("q", q),
        **_strides("k", k),
        **_strides("v", v),
        "mask_batch": 0 if mask is None or mask.shape[0] == 1 else mask.stride(0),
        "last_batch": 0 if last is None or last.numel() == 1 else last.stride(0),
    }


def _strides(name: str, tensor: torch.Tensor) -> dict[str, int]:
    """Return the strides that a kernel takes for a tensor, by name."""
    return {
        f"{name}_batch": tensor.stride(0),
        f"{name}_head": tensor.stride(HEADS),
        f"{name}_position": tensor.stride(POSITIONS),
    }


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, last: Any) -> None:
    check_floats(q=q, k=k, v=v, mask=None if mask is None or mask.dtype == torch.bool else mask)
    fits = (
        all(tensor.ndim == 4 for tensor in (q, k, v))
        and q.dtype == k.dtype == v.dtype
        and q.shape[0] == k.shape[0] == v.shape[0]
        and k.shape[HEADS] == v.shape[HEADS] > 0
        and k.shape[POSITIONS] == v.shape[POSITIONS] > 0
        and q.shape[3] == k.shape[3] > 0
        and q.shape[HEADS] % k.shape[HEADS] == 0
        and is_one_tile(q.shape, v.shape, q.element_size())
        and (mask is None or (mask.shape[1:] == (1, 1, k.shape[POSITIONS]) and mask.shape[0] in (q.shape[0], 1)))
        and (last is None or (last.dtype == torch.int64 and last.numel() in (q.shape[0], 1)))
    )
    if not fits:
        raise KernelRefuses(
            f"attention to a cache got {describe(*[each for each in (q, k, v, mask, last) if each is not None])}",
            fix="pass q: (batch, heads, positions, width), k and v: (batch, groups, keys, width), in one dtype, with "
            f"at most {MAX_ROWS} queries and {TILE_BYTES} bytes for each group; a mask (batch or 1, 1, 1, keys); and "
            "an int64 for each sequence, or one",
        )
