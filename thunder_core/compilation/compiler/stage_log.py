"""The stages of a program, noted while it is compiled."""

from __future__ import annotations

import time

from thunder_core.backend.runtime.program import Stage
from thunder_core.tracing.ir.dump import Sink
from thunder_core.tracing.ir.trace import Trace


class StageLog:
    """A log of stages, each with the seconds since the one before; each is handed on to be written as well."""

    def __init__(self, sink: Sink) -> None:
        self.stages: list[Stage] = []
        self.sink = sink
        self._before = time.perf_counter()

    def note(self, trace: Trace) -> Trace:
        """Add a stage that was being made since the one before; returns it."""
        self.add(trace, time.perf_counter() - self._before)
        self._before = time.perf_counter()
        return trace

    def add(self, trace: Trace, seconds: float = 0.0) -> None:
        """Add a stage that took so many seconds."""
        self.stages.append(Stage(trace, seconds))
        self.sink.write(trace)
