"""The start of each gather of parameters: one bucket ahead, or as early as a limit of gathered bytes allows."""

from __future__ import annotations

from collections.abc import Sequence

from thunder_core.backend.parallel.buckets import Bucket, result_of
from thunder_core.tracing.analysis.aliasing import alias_sets
from thunder_core.tracing.ir.trace import Trace


def starts_one_ahead(buckets: Sequence[Bucket], earliest: Sequence[int]) -> list[int]:
    """Return the index at which the gather of each bucket starts: the first read of the earlier bucket.

    No gather starts before its index in `earliest`, at which its shards exist.
    """
    earlier_reads = [0, *(bucket.first for bucket in buckets)][: len(buckets)]
    return [max(pair) for pair in zip(earlier_reads, earliest, strict=True)]


def starts_within(limit: float, trace: Trace, buckets: Sequence[Bucket], earliest: Sequence[int]) -> list[int]:
    """Return the earliest index at which the gather of each bucket may start, so that at most `limit` bytes are alive.

    A bucket is alive from the start of its gather to the last read of its parameters or of their views. A bucket that
    exceeds the limit together with the alive buckets starts where it is read first. Gathers start in order.
    """
    ends = last_reads(trace, buckets)
    starts: list[int] = []
    for number, bucket in enumerate(buckets):
        lower = max((earliest[number], *starts[-1:]))
        freed = (end + 1 for end in ends[:number])
        indices = sorted({lower, *(index for index in freed if lower < index < bucket.first)})
        fitting = (index for index in indices if alive_bytes(index, buckets[:number], ends) + bucket.bytes <= limit)
        starts.append(next(fitting, bucket.first))
    return starts


def alive_bytes(index: int, buckets: Sequence[Bucket], ends: Sequence[int]) -> int:
    """Return the bytes of the started buckets that bound symbols from an index on still read."""
    return sum(bucket.bytes for bucket, end in zip(buckets, ends, strict=False) if end >= index)


def last_reads(trace: Trace, buckets: Sequence[Bucket]) -> list[int]:
    """Return the index of the last bound symbol that reads parameters of each bucket, or views of them.

    For parameters that the trace returns, the index is behind its last bound symbol.
    """
    aliasing = alias_sets(trace.bound_symbols, trace.aliases)
    reads: dict[str, int] = {}
    for index, bsym in enumerate(trace.bound_symbols):
        reads |= {aliasing.representative(proxy.name): index for proxy in (*bsym.inputs, *bsym.outputs)}
    reads |= {aliasing.representative(proxy.name): len(trace.bound_symbols) for proxy in trace.outputs}
    names = [[aliasing.representative(result_of(bsym).name) for bsym in bucket.bsyms] for bucket in buckets]
    return [max(reads[name] for name in row) for row in names]
