"""The time limit of a validation: a number of calls of eager PyTorch for each input, or a number of seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

EAGER_CALLS = 5  # the time limit for an input is the time of this many eager calls
MIN_SECONDS = 30.0  # seconds; the smallest time limit
OUTPUTS_SHARE = 2 / 3  # the share of the time for comparing outputs; the rest is for the internal check
OMISSION_NOTE = (
    "{} of {} inputs were left out: the validation may take {:.0f} s, and each input took {:.0f} s (--validate-budget)"
)


def now() -> float:
    """Return the seconds of a monotonic clock."""
    return time.perf_counter()


@dataclass
class Budget:
    """The time limit for validating on `inputs` inputs; without `seconds`, it depends on the time of eager PyTorch."""

    inputs: int
    seconds: float | None = None
    start: float = field(default_factory=now)
    eager_call: float = 0.0

    @property
    def seconds_allowed(self) -> float:
        """The time limit in seconds."""
        if self.seconds is not None:
            return self.seconds
        return max(EAGER_CALLS * self.inputs * self.eager_call, MIN_SECONDS)

    @property
    def seconds_passed(self) -> float:
        """The seconds since the start."""
        return now() - self.start

    def allows(self, done: int) -> bool:
        """Whether there is time for another input, after `done` inputs; there is always time for the first."""
        return not done or self.seconds_passed * (done + 1) / done <= OUTPUTS_SHARE * self.seconds_allowed

    def note(self, done: int) -> str:
        """Return a note on the inputs that were omitted."""
        return OMISSION_NOTE.format(self.inputs - done, self.inputs, self.seconds_allowed, self.seconds_passed / done)

    @contextmanager
    def timing_eager(self) -> Iterator[None]:
        """Measure the time of the block as the time of a call of eager PyTorch."""
        began = now()
        yield
        self.eager_call = max(self.eager_call, now() - began)
