"""Tuning: executors measure several kernels for an operation while they compile, and choose the fastest.

The environment variable `THUNDER_TUNE` limits the time of the measurements for each program, and `--tune` limits it for
one run of `thunder optimize`.
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
VARIABLE = "THUNDER_TUNE"  # the environment variable
KEPT_BYTES = 31 << 20  # the largest block that `malloc` can keep has 32 MiB

_seconds: ContextVar[float | None] = ContextVar("tuning seconds", default=None)


@contextmanager
def tuning(seconds: float | None) -> Iterator[None]:
    """Limit the measurements for each program that is compiled within the block; zero seconds disable measurements.

    With None, the environment variable `THUNDER_TUNE` sets the limit; its default is one second.
    """
    token = _seconds.set(seconds)
    try:
        yield
    finally:
        _seconds.reset(token)


def tuning_seconds() -> float:
    """Return the seconds for the measurements of one program; raise `BadOption` for an invalid `THUNDER_TUNE`."""
    seconds = _seconds.get()
    return parse_duration(VARIABLE, os.environ.get(VARIABLE, DEFAULT_SECONDS)) if seconds is None else seconds


def clock() -> Callable[[], float]:
    """Return the clock for measurements, a function that returns seconds.

    With a single thread, the clock is the CPU time of this thread, which does not count the time of other processes.
    """
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def keep_freed_memory() -> None:
    """Make glibc's `malloc` keep freed blocks of up to 32 MiB, so that the times of kernels include no page faults.

    By default, `malloc` maps each large block separately, and returns the block to the system when it is freed. After
    the first mapped block was freed, `malloc` keeps later blocks up to the size of this block (mallopt(3),
    `M_MMAP_THRESHOLD`). A compiled program whose results have the same sizes at each call also reuses its blocks.
    """
    torch.empty(KEPT_BYTES, dtype=torch.uint8, device="cpu")


@dataclass
class TuningBudget:
    """The seconds that are left for the measurements of one program; below zero if they took longer."""

    seconds_left: float = field(default_factory=tuning_seconds)

    @property
    def is_off(self) -> bool:
        """Whether measurements are disabled."""
        return self.seconds_left == 0

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Subtract the time of the block from the seconds left."""
        mark_progress("measure kernels")
        keep_freed_memory()
        now = clock()
        start = now()
        try:
            yield
        finally:
            self.seconds_left -= now() - start
