"""Combine the partial results of attention: each part has its largest score, its sum and its weighted values.

The parts of a group of queries are combined in a fixed order, so results do not depend on the order in which thread
blocks run. The partial results are (groups, parts, rows) and, for the weighted values, (groups, parts, rows, width).
They are read from the L2 cache, because other multiprocessors have written them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from thunder_executors.triton.rows import power_of_two

ELEMENTS = 8192  # weighted values that are added at once: 64 for each thread
# Bytes of the weighted values of a group that its last thread block combines; it reads them in four steps.
MAX_BYTES_OF_LAST_BLOCK = 128 * 1024


@triton.jit
def write_rows(
    result: tl.tensor,
    out: tl.tensor,
    group: tl.tensor,
    row: tl.tensor,
    out_batch: tl.int64,
    out_head: tl.int64,
    out_position: tl.int64,
    heads: tl.int32,
    positions: tl.int32,
    rows: tl.int32,
    value_width: tl.int32,
    VALUE_WIDTH: tl.constexpr,
) -> None:
    """Write the attention of some rows of a group of queries."""
    column = tl.arange(0, VALUE_WIDTH)
    head = (group % heads * (rows // positions) + row // positions).to(tl.int64)
    at = (group // heads).to(tl.int64) * out_batch + head * out_head + (row % positions).to(tl.int64) * out_position
    inside = (row < rows)[:, None] & (column < value_width)[None, :]
    tl.store(out + at[:, None] + column[None, :], result.to(out.dtype.element_ty), inside)


@triton.jit
def write_part(
    top: tl.tensor,
    total: tl.tensor,
    weighted: tl.tensor,
    tops: tl.tensor,
    sums: tl.tensor,
    partials: tl.tensor,
    at: tl.tensor,
    inside: tl.tensor,
    saw_keys: tl.tensor,
    value_width: tl.int32,
    VALUE_WIDTH: tl.constexpr,
) -> None:
    """Write the partial results of some rows. A part that saw no key has no weighted values to write."""
    tl.store(tops + at, top, inside)
    tl.store(sums + at, total, inside)
    if saw_keys:
        column = tl.arange(0, VALUE_WIDTH)
        inside_values = inside[:, None] & (column < value_width)[None, :]
        tl.store(partials + at[:, None] * value_width + column[None, :], weighted, inside_values)


@triton.jit
def combine_parts(
    tops: tl.tensor,
    sums: tl.tensor,
    partials: tl.tensor,
    group: tl.tensor,
    row: tl.tensor,
    rows: tl.int32,
    parts: tl.int32,
    value_width: tl.int32,
    ROWS: tl.constexpr,
    COMBINED: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
) -> tl.tensor:
    """Return the attention of some rows of a group: the partial results, each relative to the largest score of all.

    A part that saw no key has the largest score -inf, and did not write its weighted values.
    """
    column = tl.arange(0, VALUE_WIDTH)
    first = group.to(tl.int64) * parts * rows + row
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    weighted = tl.zeros([ROWS, VALUE_WIDTH], tl.float32)
    for begin in range(0, parts, COMBINED):
        part = begin + tl.arange(0, COMBINED)
        at = first[None, :] + (part * rows)[:, None]
        read = (part < parts)[:, None] & (row < rows)[None, :]
        part_tops = tl.load(tops + at, read, float("-inf"), cache_modifier=".cg")
        part_sums = tl.load(sums + at, read, 0.0, cache_modifier=".cg")
        written = (part_tops != float("-inf"))[:, :, None] & (column < value_width)[None, None, :]
        values_at = partials + at[:, :, None] * value_width + column[None, None, :]
        values = tl.load(values_at, written, 0.0, cache_modifier=".cg")
        new_top = tl.maximum(top, tl.max(part_tops, 0))
        finite_top = tl.where(new_top == float("-inf"), 0.0, new_top)
        factors = tl.exp(part_tops - finite_top[None, :])
        factor = tl.exp(top - finite_top)
        total = total * factor + tl.sum(factors * part_sums, 0)
        weighted = weighted * factor[:, None] + tl.sum(factors[:, :, None] * values, 0)
        top = new_top
    return tl.where(total[:, None] == 0.0, 0.0, weighted / total[:, None])


@triton.jit
def combine_if_last(
    arrival: tl.tensor,
    tops: tl.tensor,
    sums: tl.tensor,
    partials: tl.tensor,
    out: tl.tensor,
    group: tl.tensor,
    out_batch: tl.int64,
    out_head: tl.int64,
    out_position: tl.int64,
    heads: tl.int32,
    positions: tl.int32,
    rows: tl.int32,
    parts: tl.int32,
    value_width: tl.int32,
    ROWS: tl.constexpr,
    COMBINED: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
) -> None:
    """Count a thread block that has written its results; the last one of the group combines the parts."""
    # All threads have written before one of them releases the results of the thread block.
    tl.debug_barrier()
    if tl.atomic_add(arrival, 1, sem="acq_rel") == parts - 1:
        tl.debug_barrier()
        row = tl.arange(0, ROWS)
        result = combine_parts(tops, sums, partials, group, row, rows, parts, value_width, ROWS, COMBINED, VALUE_WIDTH)
        write_rows(
            result, out, group, row, out_batch, out_head, out_position, heads, positions, rows, value_width, VALUE_WIDTH
        )
        tl.store(arrival, 0)


@triton.jit
def combine_attention_kernel(
    tops: tl.tensor,
    sums: tl.tensor,
    partials: tl.tensor,
    out: tl.tensor,
    out_batch: tl.int64,
    out_head: tl.int64,
    out_position: tl.int64,
    heads: tl.int32,
    positions: tl.int32,
    rows: tl.int32,
    parts: tl.int32,
    value_width: tl.int32,
    COMBINED: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
) -> None:
    """Combine the partial results of one query."""
    group = tl.program_id(0) // rows
    row = tl.program_id(0) % rows + tl.arange(0, 1)
    result = combine_parts(tops, sums, partials, group, row, rows, parts, value_width, 1, COMBINED, VALUE_WIDTH)
    write_rows(
        result, out, group, row, out_batch, out_head, out_position, heads, positions, rows, value_width, VALUE_WIDTH
    )


def parts_at_once(rows: int, value_width: int, parts: int) -> int:
    """Return the number of parts that are combined at once for some rows: a power of two."""
    return max(1, min(power_of_two(parts), ELEMENTS // (power_of_two(rows) * value_width)))
