"""Tuning: the time in which executors measure candidates for one program, to run the fastest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import torch

DEFAULT_SECONDS = 1.0

_seconds: ContextVar[float] = ContextVar("tuning seconds", default=DEFAULT_SECONDS)


@contextmanager
def tuning(seconds: float) -> Iterator[None]:
    """While the block runs, executors measure candidates for so many seconds a program; zero is not at all."""
    token = _seconds.set(seconds)
    try:
        yield
    finally:
        _seconds.reset(token)


def clock() -> Callable[[], float]:
    """The clock of a measurement: CPU time of this thread if it computes alone, since other load then counts less."""
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


@dataclass
class TuningBudget:
    """The seconds that are left for measuring candidates of one program."""

    left: float = field(default_factory=_seconds.get)

    @property
    def is_off(self) -> bool:
        """Whether nothing is to be measured at all."""
        return _seconds.get() == 0

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Take the time of a block from what is left."""
        read = clock()
        start = read()
        try:
            yield
        finally:
            self.left -= read() - start
