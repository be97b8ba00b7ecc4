"""Tuning: the time in which executors measure candidates for one program, to run the fastest.

`THUNDER_TUNE` sets the time for a process, as `--tune` does for one optimization.
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

DEFAULT_SECONDS = 1.0
VARIABLE = "THUNDER_TUNE"

_seconds: ContextVar[float | None] = ContextVar("tuning seconds", default=None)


@contextmanager
def tuning(seconds: float | None) -> Iterator[None]:
    """While the block runs, executors measure candidates for so many seconds a program; zero is not at all.

    With None, for as long as the variable `THUNDER_TUNE` says, or a second.
    """
    token = _seconds.set(seconds)
    try:
        yield
    finally:
        _seconds.reset(token)


def tuning_seconds() -> float:
    """The seconds for measuring candidates of one program; raises `BadOption` for a variable that is no time."""
    asked = _seconds.get()
    return parse_duration(VARIABLE, os.environ.get(VARIABLE, DEFAULT_SECONDS)) if asked is None else asked


def clock() -> Callable[[], float]:
    """The clock of a measurement: CPU time of this thread if it computes alone, since other load then counts less."""
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


@dataclass
class TuningBudget:
    """The seconds that are left for measuring candidates of one program."""

    left: float = field(default_factory=tuning_seconds)

    @property
    def is_off(self) -> bool:
        """Whether nothing is to be measured."""
        return self.left == 0

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Take the time of a block from what is left."""
        read = clock()
        start = read()
        try:
            yield
        finally:
            self.left -= read() - start
