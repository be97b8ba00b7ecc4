"""Record the attempts to trace one call, each with the reason why it failed."""

from __future__ import annotations

import time

from thunder_core.backend.runtime.attempt_log import AttemptLog, TracingAttempt
from thunder_core.foundation.errors import SourceLine, ThunderError
from thunder_core.frontend.acquire.outside.sharp import users_line
from thunder_core.tracing.ir.dump import NoSink, Sink
from thunder_core.tracing.ir.own_errors import summary_of
from thunder_core.tracing.ir.program_errors import ProgramRaised
from thunder_core.tracing.ir.retrace import NOT_FOR_THIS_CALL, Retrace, in_words, line_of
from thunder_core.tracing.library.objects import GuardFailed


class CallAttempts:
    """The recording of the attempts to trace one call: in the log of the subject, and in the `sink` of the program.

    The interpretation of the program is a separate attempt, even if only this part is repeated. `tried` describes
    the current attempt.
    """

    def __init__(self, log: AttemptLog) -> None:
        self.tried = ""
        self.sink: Sink = NoSink()
        self._log = log
        self._began = time.perf_counter()

    def end(self, error: BaseException | None = None) -> None:
        """Record the current attempt, which raised an error or, without an error, succeeded."""
        now = time.perf_counter()
        reason, where = ("", None) if error is None else reason_of(error)
        attempt = TracingAttempt(self._log.calls, self.tried, now - self._began, reason, where)
        self._began = now
        self._log.attempts.append(attempt)
        self.sink.write_attempt(str(attempt))


def reason_of(error: BaseException) -> tuple[str, SourceLine | None]:
    """Return the reason for another attempt in words, and the source line that caused it; None if it is not known."""
    if isinstance(error, Retrace):
        return in_words(error.reason), line_of(error.reason) or users_line(error)
    if isinstance(error, ProgramRaised):
        return f"the program raises {summary_of(error.error)}", error.where
    if isinstance(error, ThunderError):
        return error.what, error.where or users_line(error)
    return NOT_FOR_THIS_CALL if isinstance(error, GuardFailed) else summary_of(error), users_line(error)
