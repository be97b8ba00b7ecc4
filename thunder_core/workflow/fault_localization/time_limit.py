"""The time limit of a check, which evaluations test line by line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

OUT_OF_TIME = "the time limit was reached"


class OutOfTime(Exception):
    """Raised if the time limit of a check is reached; the parts that were not compared are noted."""


@dataclass
class Deadline:
    """The time after which no more lines are compared; 0 `seconds` is no limit."""

    seconds: float = 0.0
    start: float = field(default_factory=time.perf_counter)

    @property
    def seconds_passed(self) -> float:
        """The seconds since the start."""
        return time.perf_counter() - self.start

    @property
    def is_over(self) -> bool:
        """Whether the time limit has been reached."""
        return bool(self.seconds) and self.seconds_passed > self.seconds

    def part(self, share: float) -> Deadline:
        """Return a deadline after this share of the remaining time."""
        if not self.seconds:
            return self
        return Deadline(self.seconds_passed + share * max(0.0, self.seconds - self.seconds_passed), self.start)


_limits: ContextVar[Deadline | None] = ContextVar("time limit of an examination", default=None)


@contextmanager
def limit_time(deadline: Deadline | None) -> Iterator[None]:
    """While the block runs, let `require_time` raise `OutOfTime` after a deadline; None sets no limit.

    The search for the line of a known fault is not limited.
    """
    token = _limits.set(deadline)
    try:
        yield
    finally:
        _limits.reset(token)


def require_time() -> None:
    """Raise `OutOfTime` if the time limit has been reached."""
    deadline = _limits.get()
    if deadline is not None and deadline.is_over:
        raise OutOfTime(OUT_OF_TIME)
