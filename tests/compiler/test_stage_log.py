"""Stages are logged in order, with the seconds that each took, as they finish."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from thunder_core.compilation.compiler.stage_log import StageLog
from thunder_core.tracing.ir.trace import Trace


class Written:
    """A sink that records the text written to it."""

    def __init__(self) -> None:
        self.traces: list[Trace] = []

    def write(self, trace: Trace) -> None:
        self.traces.append(trace)


def test_stages_have_the_seconds_since_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.0, 12.0, 12.5, 12.5])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    sink = Written()
    log = StageLog(sink)
    first = Trace(name="first", inputs=(), bound_symbols=(), output=None)
    prologue, second = replace(first, name="prologue"), replace(first, name="second")
    assert log.note(first) is first
    log.add(prologue)
    log.note(second)
    assert [(stage.trace.name, stage.seconds) for stage in log.stages] == [
        ("first", 2.0),
        ("prologue", 0.0),
        ("second", 0.5),
    ]
    assert sink.traces == [first, prologue, second]
