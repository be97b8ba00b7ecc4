"""The blocks of keys of a thread block: which of them have a visible key, and the attention of queries to them.

The blocks of keys are dealt out in turn: step `s` of part `p` reads the block `s * parts + p`.
"""

from __future__ import annotations

import triton
import triton.language as tl

from thunder_executors.triton.products.split_sums import multiply


@triton.jit
def visible_from_mask(mask: tl.tensor, at: tl.tensor, inside: tl.tensor) -> tl.tensor:
    """Return whether a mask shows some keys: a byte that is not 0, or a float that is not -inf."""
    if mask.dtype.element_ty == tl.uint8:
        visible = tl.load(mask + at, inside, 0) != 0
    else:
        visible = tl.load(mask + at, inside, float("-inf")).to(tl.float32) != float("-inf")
    return visible & inside


@triton.jit
def add_mask(scores: tl.tensor, mask: tl.tensor, at: tl.tensor, visible: tl.tensor) -> tl.tensor:
    """Return the scores of some keys plus a mask of floats; a mask of bytes adds nothing."""
    if mask.dtype.element_ty != tl.uint8:
        scores += tl.load(mask + at, visible, 0.0).to(tl.float32)[None, :]
    return scores


@triton.jit
def filled_keys(last: tl.tensor, offset: tl.int32, keys: tl.int32) -> tl.tensor:
    """Return the number of keys up to the index at `last` plus an offset; all keys without `last`."""
    filled = keys
    if last is not None:
        # An index far outside of the cache must not overflow.
        nearest = tl.minimum(tl.maximum(tl.load(last), -2), keys).to(tl.int32)
        filled = tl.minimum(tl.maximum(nearest + offset + 1, 0), keys)
    return filled


@triton.jit
def steps_with_visible_keys(
    mask: tl.tensor, filled: tl.int32, part: tl.int32, parts: tl.int32, KEYS: tl.constexpr, SCANNED: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Return the first step of a part whose block has a visible key, and the step after the last one."""
    steps = tl.cdiv(tl.cdiv(filled, KEYS) - part, parts)
    first = 0
    end = steps
    if mask is not None:
        first = steps
        end = 0
        for begin in range(0, steps, SCANNED):
            step = begin + tl.arange(0, SCANNED)
            at = (step * parts + part)[:, None] * KEYS + tl.arange(0, KEYS)[None, :]
            inside = (step < steps)[:, None] & (at < filled)
            is_visible = tl.max(visible_from_mask(mask, at, inside).to(tl.int32), 1) > 0
            first = tl.minimum(first, tl.min(tl.where(is_visible, step, steps), 0))
            end = tl.maximum(end, tl.max(tl.where(is_visible, step + 1, 0), 0))
    return first, end


@triton.jit
def read_queries(
    q: tl.tensor,
    row: tl.tensor,
    q_head: tl.int64,
    q_position: tl.int64,
    positions: tl.int32,
    rows: tl.int32,
    width: tl.int32,
    WIDTH: tl.constexpr,
) -> tl.tensor:
    """Return the queries of a group: a row for each head of queries and each position."""
    column = tl.arange(0, WIDTH)
    at = (row // positions).to(tl.int64) * q_head + (row % positions).to(tl.int64) * q_position
    inside = (row < rows)[:, None] & (column < width)[None, :]
    return tl.load(q + at[:, None] + column[None, :], inside, 0.0)


@triton.jit
def attend(
    queries: tl.tensor,
    k: tl.tensor,
    v: tl.tensor,
    mask: tl.tensor,
    k_position: tl.int64,
    v_position: tl.int64,
    scale: tl.float32,
    filled: tl.int32,
    first: tl.int32,
    end: tl.int32,
    part: tl.int32,
    parts: tl.int32,
    width: tl.int32,
    value_width: tl.int32,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
) -> tuple[tl.tensor, tl.tensor, tl.tensor]:
    """Return the largest score of each query, and the sum and the weighted values relative to this score."""
    column = tl.arange(0, WIDTH)
    value_column = tl.arange(0, VALUE_WIDTH)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, VALUE_WIDTH], tl.float32)
    for step in range(first, end):
        at = (step * parts + part) * KEYS + tl.arange(0, KEYS)
        visible = at < filled
        if mask is not None:
            visible = visible_from_mask(mask, at, visible)
        keys_at = k + at.to(tl.int64)[None, :] * k_position + column[:, None]
        scores = multiply(queries, tl.load(keys_at, visible[None, :] & (column < width)[:, None], 0.0)) * scale
        if mask is not None:
            scores = add_mask(scores, mask, at, visible)
        scores = tl.where(visible[None, :], scores, float("-inf"))
        new_top = tl.maximum(top, tl.max(scores, 1))
        finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)
        weights = tl.exp(scores - finite_top[:, None])
        factor = tl.exp(top - finite_top)
        values_at = v + at.to(tl.int64)[:, None] * v_position + value_column[None, :]
        values = tl.load(values_at, visible[:, None] & (value_column < value_width)[None, :], 0.0)
        total = total * factor + tl.sum(weights, 1)
        weighted = weighted * factor[:, None] + multiply(weights.to(values.dtype), values)
        top = new_top
    return top, total, weighted
