"""The time limit of an examination, which evaluations observe line by line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

OUT_OF_TIME = "the time limit was reached"


class OutOfTime(Exception):
    """Raised where the time limit of an examination is reached; what was not compared is noted."""


@dataclass
class Deadline:
    """A point in time until which lines are compared; `seconds` of 0 set none."""

    seconds: float = 0.0
    start: float = field(default_factory=time.perf_counter)

    @property
    def passed(self) -> float:
        """The seconds since the start."""
        return time.perf_counter() - self.start

    @property
    def is_over(self) -> bool:
        """Whether no more is to be compared."""
        return bool(self.seconds) and self.passed > self.seconds

    def part(self, share: float) -> Deadline:
        """The deadline of the first part of what is left to do, which may take this share of the time that is left."""
        if not self.seconds:
            return self
        return Deadline(self.passed + share * max(0.0, self.seconds - self.passed), self.start)


_limits: ContextVar[Deadline | None] = ContextVar("time limit of an examination", default=None)


@contextmanager
def time_limited(deadline: Deadline | None) -> Iterator[None]:
    """While the block runs, have `require_time` raise `OutOfTime` behind a deadline; None sets no limit.

    What follows a fault that was found, in order to name its line, takes the time that it takes.
    """
    token = _limits.set(deadline)
    try:
        yield
    finally:
        _limits.reset(token)


def require_time() -> None:
    """Raise `OutOfTime` where the time limit was reached."""
    deadline = _limits.get()
    if deadline is not None and deadline.is_over:
        raise OutOfTime(OUT_OF_TIME)
