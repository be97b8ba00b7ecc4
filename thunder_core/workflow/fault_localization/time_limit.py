"""The time limit of an examination. Code that evaluates a trace checks the limit before each line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

OUT_OF_TIME = "the time limit was reached"


class OutOfTime(Exception):
    """Raised if the time limit is reached. The examination records which parts were not compared."""


@dataclass
class Deadline:
    """A time limit: `seconds` after `start`. If `seconds` is 0, there is no limit."""

    seconds: float = 0.0
    start: float = field(default_factory=time.perf_counter)

    @property
    def seconds_passed(self) -> float:
        """The seconds since the start."""
        return time.perf_counter() - self.start

    @property
    def is_over(self) -> bool:
        """Whether the time limit has passed."""
        return bool(self.seconds) and self.seconds_passed > self.seconds

    def part(self, share: float) -> Deadline:
        """Return a deadline after this share of the remaining time."""
        if not self.seconds:
            return self
        return Deadline(self.seconds_passed + share * max(0.0, self.seconds - self.seconds_passed), self.start)


_current_deadline: ContextVar[Deadline | None] = ContextVar("time limit of an examination", default=None)


@contextmanager
def limit_time(deadline: Deadline | None) -> Iterator[None]:
    """Within the block, `require_time` raises `OutOfTime` after the deadline.

    None removes the limit of an enclosing block, for the search for the line of a known fault.
    """
    token = _current_deadline.set(deadline)
    try:
        yield
    finally:
        _current_deadline.reset(token)


def require_time() -> None:
    """Raise `OutOfTime` if the time limit of the examination has passed."""
    deadline = _current_deadline.get()
    if deadline is not None and deadline.is_over:
        raise OutOfTime(OUT_OF_TIME)
