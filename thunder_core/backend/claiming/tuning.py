"""Tuning: the time in which executors measure candidates for a program, to run the fastest.

`THUNDER_TUNE` sets the time for a process, and `--tune` for one optimization.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch

from thunder_core.foundation.options.duration import parse_duration
from thunder_core.foundation.progress_marks import mark_progress

DEFAULT_SECONDS = 1.0
VARIABLE = "THUNDER_TUNE"

_seconds: ContextVar[float | None] = ContextVar("tuning seconds", default=None)


@contextmanager
def tuning(seconds: float | None) -> Iterator[None]:
    """Let executors measure candidates for these seconds in each program within the block; zero disables measurements.

    With None, the variable `THUNDER_TUNE` sets the time; its default is one second.
    """
    token = _seconds.set(seconds)
    try:
        yield
    finally:
        _seconds.reset(token)


def tuning_seconds() -> float:
    """Return the seconds for measuring candidates of a program; raise `BadOption` for an invalid variable."""
    seconds = _seconds.get()
    return parse_duration(VARIABLE, os.environ.get(VARIABLE, DEFAULT_SECONDS)) if seconds is None else seconds


def clock() -> Callable[[], float]:
    """Return the clock for measurements.

    It is this thread's CPU time if the thread computes alone, because other load then matters less.
    """
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


@dataclass
class TuningBudget:
    """The seconds that are left for measuring candidates of a program."""

    seconds_left: float = field(default_factory=tuning_seconds)

    @property
    def is_off(self) -> bool:
        """Whether nothing may be measured."""
        return self.seconds_left == 0

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Subtract the time of the block from the seconds left."""
        mark_progress("measure kernels")
        read = clock()
        start = read()
        try:
            yield
        finally:
            self.seconds_left -= read() - start
