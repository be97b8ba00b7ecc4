"""Choose where the gather of each parameter bucket starts: one bucket ahead, or as early as a memory limit allows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from thunder_core.backend.parallel.buckets import Bucket, result_of, tensor_of
from thunder_core.backend.parallel.flat_buckets import coalesces
from thunder_core.tracing.analysis.aliasing import alias_sets
from thunder_core.tracing.ir.trace import Trace


def starts_one_ahead(buckets: Sequence[Bucket], earliest: Sequence[int]) -> list[int]:
    """Return the index at which the gather of each bucket starts: the first read of the earlier bucket.

    No gather starts before its index in `earliest`, at which its shards exist.
    """
    earlier_reads = [0, *(bucket.first for bucket in buckets)][: len(buckets)]
    return [max(pair) for pair in zip(earlier_reads, earliest, strict=True)]


@dataclass(frozen=True)
class Span:
    """The indices of the first and the last bound symbol between which a number of bytes of gradients are alive."""

    first: int
    last: int
    bytes: float


def spans_of_gradients(
    trace: Trace, buckets: Sequence[Bucket], waits: Sequence[int], dtype: torch.dtype | None
) -> list[Span]:
    """Return the spans of the full gradients of buckets, and of the flat copies that are reduced, if there are any.

    The trace waits for the reductions at the indices `waits`. The reductions are computed in `dtype`, or in the
    gradients' own dtype if it is None.
    """
    first_of = first_definitions(trace, [[tensor_of(bsym).name for bsym in bucket.bsyms] for bucket in buckets])
    spans: list[Span] = []
    for first, bucket, wait in zip(first_of, buckets, waits, strict=True):
        gradient, group_name = tensor_of(bucket.bsyms[0]), bucket.bsyms[0].args[2]
        last = max(wait - 1, bucket.last)
        if coalesces(group_name, gradient.device):
            spans.append(Span(first, last, bucket.bytes))
        else:
            flat_bytes = bucket.bytes / gradient.dtype.itemsize * (dtype or gradient.dtype).itemsize
            spans += Span(first, bucket.last, bucket.bytes), Span(bucket.last, last, flat_bytes)
    return spans


def first_definitions(trace: Trace, rows: Sequence[Sequence[str]]) -> list[int]:
    """Return, for each row of names, the first index that defines memory of a name in the row; 0 for trace inputs."""
    aliasing = alias_sets(trace.bound_symbols, trace.aliases)
    indices: dict[str, int] = {aliasing.representative(proxy.name): 0 for proxy in trace.inputs}
    for index, bsym in enumerate(trace.bound_symbols):
        for proxy in bsym.defines:
            indices.setdefault(aliasing.representative(proxy.name), index)
    return [min(indices.get(aliasing.representative(name), 0) for name in names) for names in rows]


def starts_within(
    limit: float, trace: Trace, buckets: Sequence[Bucket], earliest: Sequence[int], gradients: Sequence[Span]
) -> list[int]:
    """Return the earliest index at which the gather of each bucket may start, so that at most `limit` bytes are alive.

    A bucket is alive from the start of its gather to the last read of its parameters or of their views. If a gather
    would exceed the limit at every earlier index, it starts where the bucket is first read. Gathers start in order.
    """
    ends = last_reads(trace, buckets)
    frees = {*ends, *(span.last for span in gradients)}
    starts: list[int] = []
    for number, bucket in enumerate(buckets):
        lower = max((earliest[number], *starts[-1:]))
        indices = sorted({lower, *(index + 1 for index in frees if lower <= index < bucket.first - 1)})
        spans = [*gradients, *map(Span, starts, ends, (earlier.bytes for earlier in buckets))]
        room = limit - bucket.bytes
        fitting = (index for index in indices if peak_bytes(index, ends[number], spans) <= room)
        starts.append(next(fitting, bucket.first))
    return starts


def peak_bytes(start: int, end: int, spans: Sequence[Span]) -> float:
    """Return the largest number of bytes that are alive at the same time between two indices."""
    near = [span for span in spans if span.first <= end and span.last >= start]
    indices = {start, *(span.first for span in near if span.first > start)}
    return max(sum(span.bytes for span in near if span.first <= index <= span.last) for index in indices)


def last_reads(trace: Trace, buckets: Sequence[Bucket]) -> list[int]:
    """Return the index of the last bound symbol that reads parameters of each bucket, or views of them.

    For a parameter that the trace returns, the index is the number of bound symbols in the trace.
    """
    aliasing = alias_sets(trace.bound_symbols, trace.aliases)
    reads: dict[str, int] = {}
    for index, bsym in enumerate(trace.bound_symbols):
        reads |= {aliasing.representative(proxy.name): index for proxy in (*bsym.inputs, *bsym.outputs)}
    reads |= {aliasing.representative(proxy.name): len(trace.bound_symbols) for proxy in trace.outputs}
    names = [[aliasing.representative(result_of(bsym).name) for bsym in bucket.bsyms] for bucket in buckets]
    return [max(reads[name] for name in row) for row in names]
