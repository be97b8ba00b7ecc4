"""The time that a validation may take: so many calls of eager PyTorch for each input, or so many seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

EAGER_CALLS = 5  # of one input, by whose time the time for an input is bounded
LEAST = 30.0  # seconds, which a validation may take in any case
FOR_OUTPUTS = 2 / 3  # of the time, for comparing outputs; the rest is for the look inside
LEFT_OUT = (
    "{} of {} inputs were left out: the validation may take {:.0f} s, and each input took {:.0f} s (--validate-budget)"
)


def now() -> float:
    """The seconds of a clock."""
    return time.perf_counter()


@dataclass
class Budget:
    """The time for validating on so many inputs; without `seconds` it follows from the time of eager PyTorch."""

    inputs: int
    seconds: float | None = None
    start: float = field(default_factory=now)
    eager_call: float = 0.0

    @property
    def allowed(self) -> float:
        """The seconds that everything may take."""
        if self.seconds is not None:
            return self.seconds
        return max(EAGER_CALLS * self.inputs * self.eager_call, LEAST)

    @property
    def passed(self) -> float:
        """The seconds since the start."""
        return now() - self.start

    def allows(self, done: int) -> bool:
        """Whether there is time for one more input, after some that took as long each; there is for the first."""
        return not done or self.passed * (done + 1) / done <= FOR_OUTPUTS * self.allowed

    def note(self, done: int) -> str:
        """The inputs that were left out, in words."""
        return LEFT_OUT.format(self.inputs - done, self.inputs, self.allowed, self.passed / done)

    @contextmanager
    def timing_eager(self) -> Iterator[None]:
        """Take the time of the block as that of a call of eager PyTorch."""
        began = now()
        yield
        self.eager_call = max(self.eager_call, now() - began)
