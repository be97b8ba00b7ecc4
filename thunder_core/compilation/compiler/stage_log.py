"""The stages of a program, recorded while it is compiled."""

from __future__ import annotations

import time

from thunder_core.backend.runtime.program import Stage
from thunder_core.tracing.ir.dump import Sink
from thunder_core.tracing.ir.trace import Trace


class StageLog:
    """A list of stages with their durations. Each stage is also passed to the sink."""

    def __init__(self, sink: Sink) -> None:
        self.stages: list[Stage] = []
        self.sink = sink
        self._before = time.perf_counter()

    def note(self, trace: Trace) -> Trace:
        """Add a trace as a stage, whose duration is the time since the previous stage; return the trace."""
        self.add(trace, time.perf_counter() - self._before)
        self._before = time.perf_counter()
        return trace

    def add(self, trace: Trace, seconds: float = 0.0) -> None:
        """Add a stage with its duration in seconds."""
        self.stages.append(Stage(trace, seconds))
        self.sink.write(trace)
