"""The times of a call on one rank: when each collective starts, when the rank waits for it, and when the wait ends."""

from __future__ import annotations

from collections.abc import Iterable

from thunder_core.workflow.benchmark.interval import BenchmarkFacts

Span = tuple[float, float]  # a begin and an end, in seconds


class CollectiveTimes(BenchmarkFacts):
    """A collective of a call. Times are in seconds after the start of the call."""

    kind: str
    group: str
    bytes: int
    """The size of the tensors that the rank passes to the collective."""
    trace: str
    line: int
    """The line of the trace that starts the collective."""
    start: float
    wait: float
    """When the rank begins to wait."""
    end: float
    """When the wait ends."""


class TraceTimes(BenchmarkFacts):
    """The begin and the end of a trace, in seconds after the start of the call."""

    name: str
    start: float
    end: float


class RankTimes(BenchmarkFacts):
    """The traces and collectives of a call on one rank, in the order of their starts."""

    rank: int
    traces: tuple[TraceTimes, ...]
    collectives: tuple[CollectiveTimes, ...]

    @property
    def seconds(self) -> float:
        """The end of the last trace."""
        return max((trace.end for trace in self.traces), default=0.0)

    @property
    def waits(self) -> tuple[Span, ...]:
        """The spans of time in which the rank waits and computes nothing."""
        return tuple((collective.wait, collective.end) for collective in self.collectives)

    @property
    def waiting(self) -> float:
        """The seconds in which the rank waits and computes nothing."""
        return union_length(self.waits)

    @property
    def in_flight(self) -> float:
        """The seconds in which at least one collective is running."""
        return union_length((collective.start, collective.end) for collective in self.collectives)

    @property
    def overlapped(self) -> float:
        """The seconds in which the rank computes while a collective is in flight."""
        return self.in_flight - self.waiting

    def seconds_computed_during(self, collective: CollectiveTimes) -> float:
        """Return the seconds in which the rank computes between the start of a collective and the wait for it."""
        window = (collective.start, collective.wait)
        return window[1] - window[0] - union_length(clip_span(wait, window) for wait in self.waits)


def clip_span(span: Span, window: Span) -> Span:
    """Return the part of a span within a window; an empty span if there is none."""
    start = max(span[0], window[0])
    return start, max(start, min(span[1], window[1]))


def union_length(spans: Iterable[Span]) -> float:
    """Return the length of the union of spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
