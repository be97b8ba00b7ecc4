"""Record the times of collectives on this rank: programs run with a clock read around each line that communicates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_core.backend.runtime.generate import rewriting_traces
from thunder_core.tracing.analysis.collectives import Waits, collective_of, started_collectives
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol, python_statement
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.benchmark.rank_times import CollectiveTimes, RankTimes, TraceTimes

TICK = "tick_of_the_recorder"
FORWARD = "computation"


class HostClock:
    """A clock for a device whose kernels have finished when a call returns, such as the CPU."""

    def now(self) -> Any:
        """Return the current time, as a mark for `seconds`."""
        return time.perf_counter()

    def seconds(self, first: Any, mark: Any) -> float:
        """Return the seconds between two marks."""
        return float(mark - first)


class CudaClock(HostClock):
    """A clock that records events in the current stream of a GPU, because the host continues before kernels finish."""

    def now(self) -> Any:
        """Record an event in the current stream, and return it as a mark for `seconds`."""
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def seconds(self, first: Any, mark: Any) -> float:
        """Wait for the second event, and return the seconds between both."""
        mark.synchronize()
        return float(first.elapsed_time(mark)) / 1000


@dataclass
class TraceRun:
    """A run of a trace: the recorded times, by the index of the line that follows."""

    trace: Trace
    marks: dict[int, Any] = field(default_factory=dict)


@dataclass(eq=False)
class CollectiveRecorder:
    """Records the runs of traces within the context `recording`."""

    device: torch.device
    runs: list[TraceRun] = field(default_factory=list)
    first: Any = None
    _traces: list[Trace] = field(default_factory=list)
    _latest: dict[int, TraceRun] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.clock = CudaClock() if self.device.type == "cuda" else HostClock()

    def recording(self) -> AbstractContextManager[None]:
        """Return the context in which programs record the times of their runs."""
        return rewriting_traces(self._with_ticks)

    def begin(self) -> None:
        """Begin a new call."""
        self.runs.clear()
        self._latest.clear()
        self.first = self.clock.now()

    def _with_ticks(self, trace: Trace) -> Trace:
        """Return the trace with a tick, which records the time, at both ends and around each line that communicates."""
        number = len(self._traces)
        self._traces.append(trace)
        bsyms = list(_insert_ticks(trace, number))
        return trace.having(bsyms, made_by=trace.made_by, constants={**trace.constants, TICK: self._tick})

    def _tick(self, number: int, index: int) -> None:
        """Record the time before line `index` of trace `number`."""
        if index == 0:
            self._latest[number] = TraceRun(self._traces[number])
            self.runs.append(self._latest[number])
        if number in self._latest:
            self._latest[number].marks[index] = self.clock.now()

    def times(self, rank: int, *, last_call: bool = False) -> RankTimes:
        """Return the times since `begin`; with `last_call`, only since the start of the last forward.

        Runs that an error has interrupted are left out.
        """
        runs = [run for run in self.runs if len(run.trace.bound_symbols) in run.marks]
        first = self.first
        if last_call:
            number = max((number for number, run in enumerate(runs) if run.trace.name == FORWARD), default=0)
            runs = runs[number:]
            first = runs[0].marks[0] if runs else first

        def seconds(mark: Any) -> float:
            return self.clock.seconds(first, mark)

        collectives = [times for run in runs for times in collectives_in(run, seconds)]
        return RankTimes(
            rank=rank,
            traces=tuple(times_of_trace(run, seconds) for run in runs),
            collectives=tuple(sorted(collectives, key=lambda times: times.start)),
        )


def _insert_ticks(trace: Trace, number: int) -> Iterator[BoundSymbol]:
    """Yield the bound symbols of a trace, and the ticks between them."""
    bsyms = trace.bound_symbols
    indices = {0, len(bsyms)}
    indices |= {near for index, bsym in enumerate(bsyms) if bsym.communicates for near in (index, index + 1)}
    for index, bsym in enumerate(bsyms):
        if index in indices:
            yield python_statement(f"{TICK}({number}, {index})")
        yield bsym
    yield python_statement(f"{TICK}({number}, {len(bsyms)})")


def times_of_trace(run: TraceRun, seconds: Callable[[Any], float]) -> TraceTimes:
    """Return the begin and the end of a run."""
    end = run.marks[len(run.trace.bound_symbols)]
    return TraceTimes(name=run.trace.name, start=seconds(run.marks[0]), end=seconds(end))


def collectives_in(run: TraceRun, seconds: Callable[[Any], float]) -> Iterator[CollectiveTimes]:
    """Yield the times of the collectives of a run. If no later line waits for a collective, its own line waits."""
    bsyms = run.trace.bound_symbols
    first_waits = Waits(bsyms).first
    for index, bsym in enumerate(bsyms):
        for operator in started_collectives(bsym):
            collective = collective_of(operator, bsym.source)
            wait = first_waits.get(index, index)
            yield CollectiveTimes(
                kind=collective.kind,
                group=collective.group,
                bytes=int(hint_of(collective.bytes)),
                trace=run.trace.name,
                line=index + 1,
                start=seconds(run.marks[index]),
                wait=seconds(run.marks[wait]),
                end=seconds(run.marks[wait + 1]),
            )
