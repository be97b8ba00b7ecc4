"""The executors' shares of the time. A computation runs one bound symbol at a time, and a clock measures each."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from thunder_core.backend.runtime.generate import executable
from thunder_core.tracing.ir.printer import print_trace
from thunder_core.tracing.ir.symbol import BoundSymbol, python_statement
from thunder_core.tracing.ir.trace import Trace

RUNS = 5
SLOW_TRACE_SECONDS = 2.0  # seconds: a trace that takes longer is timed only once
TICK = "tick_of_the_clock"


class ExecutorClock:
    """Adds the time of each bound symbol to its executor."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._before = time.perf_counter()

    def __call__(self, executor: str) -> None:
        """Record that a bound symbol of this executor has run."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        now = time.perf_counter()
        self.seconds[executor] += now - self._before
        self._before = time.perf_counter()


@dataclass(frozen=True)
class TimedTrace:
    """A trace whose time is divided among executors.

    `inputs` makes new inputs for each run, because a backward empties its list of inputs.
    """

    trace: Trace
    inputs: Callable[[], Sequence[object]]


def time_shares(*parts: TimedTrace, device: torch.device) -> list[dict[str, float]]:
    """Return for each part the executors' shares, 0 to 1, of the total time of all parts; medians of a few runs.

    On CUDA, the device is synchronized after each bound symbol. Bound symbols without an executor, which free memory,
    count for the previous executor. Unpacking at the beginning of a backward counts for the first executor.
    """
    medians = [_medians(part, device) for part in parts]
    total = sum(sum(seconds_by_name.values()) for seconds_by_name in medians) or 1.0
    return [{name: seconds / total for name, seconds in seconds_by_name.items()} for seconds_by_name in medians]


def _medians(part: TimedTrace, device: torch.device) -> dict[str, float]:
    first = _run(part.trace, part.inputs(), device)  # the warm-up run, which is the only run of a slow trace
    if sum(first.values()) > SLOW_TRACE_SECONDS:
        return first
    runs = [_run(part.trace, part.inputs(), device) for _ in range(RUNS)]
    return {name: median(run[name] for run in runs) for name in runs[0]}


def _run(trace: Trace, inputs: Sequence[object], device: torch.device) -> dict[str, float]:
    clock = ExecutorClock(device)
    constants = {**trace.constants, TICK: clock}
    timed = trace.having(_with_ticks(trace), made_by=trace.made_by, constants=constants)
    function = executable(print_trace(timed, comments=False), timed.name)
    clock("")
    clock.seconds.clear()
    function(*inputs)
    return dict(clock.seconds)


def _with_ticks(trace: Trace) -> Iterator[BoundSymbol]:
    executor = next((bsym.executor for bsym in trace.bound_symbols if bsym.executor), "")
    for bsym in trace.bound_symbols:
        executor = bsym.executor or executor
        yield bsym
        yield python_statement(f"{TICK}({executor!r})")
