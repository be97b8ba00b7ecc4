"""The attempts to trace the calls of a compiled function: what each attempt tried, and why it failed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, replace

from thunder_core.foundation.errors import SourceLine

MAX_ATTEMPTS = 1000  # the latest attempts that are kept


@dataclass(frozen=True)
class TracingAttempt:
    """An attempt to trace a call, which failed if it has a `reason`.

    `call` numbers the traced calls of a compiled function from 1. `tried` describes what was symbolic or constant, and
    what the attempt did otherwise than the attempt before. `seconds` is the time of the attempt, with compilation.
    `where` is the source line at which the attempt failed; None if it is not known.
    """

    call: int
    tried: str
    seconds: float
    reason: str = ""
    where: SourceLine | None = None

    def __str__(self) -> str:
        at = "" if self.where is None else f", at {self.where}"
        result = f"failed: {self.reason}{at}" if self.reason else "succeeded"
        return f"call {self.call}: {self.tried}: {self.seconds:.3f} s, {result}"


@dataclass
class AttemptLog:
    """The latest `attempts` to trace the calls of a subject, and the number of its traced `calls`."""

    attempts: deque[TracingAttempt] = field(default_factory=lambda: deque(maxlen=MAX_ATTEMPTS))
    calls: int = 0

    def fail_last(self, reason: str, where: SourceLine | None = None) -> None:
        """Record that the call cannot use the program of the latest attempt, so that the call is traced again."""
        if self.attempts:
            self.attempts[-1] = replace(self.attempts[-1], reason=reason, where=where)
