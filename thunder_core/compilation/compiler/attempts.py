"""Attempts to trace a call, with and without symbolic numbers and sizes: which attempt follows a failed attempt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thunder_core.backend.runtime.retraces import warn_of
from thunder_core.foundation.errors import Bug, DataDependent, SymbolicAttemptWarning
from thunder_core.foundation.errors.tree import first_line
from thunder_core.frontend.acquire.outside.symbolic import CONSTANT, Symbolic
from thunder_core.frontend.acquire.run.call_attempts import CallAttempts
from thunder_core.tracing.ir.check import REPORT
from thunder_core.tracing.ir.own_errors import is_own_error, report_own_error, summary_of
from thunder_core.tracing.ir.program_errors import ProgramRaised
from thunder_core.tracing.ir.retrace import (
    NOT_FOR_THIS_CALL,
    DecidesForOtherCalls,
    FillsCache,
    LosesKernels,
    MeetsSymbol,
    NeedsNumbers,
    ReadsStrides,
    Retrace,
    RunsInEager,
)
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.objects import GuardFailed

NEEDS_VALUES = "C code reads numbers inside a container"


class TracingAttempts:
    """The `pending` attempts to trace a call, and the `reason` why attempts with symbolic sizes failed.

    An attempt (`Symbolic`) is a choice of the numbers and sizes that are symbolic. If `counts` is set, a program that
    reads values of tensors is traced again, with symbols for the sizes that depend on these values. If the program
    still needs a value, `refused_value` is the error for this value. `recording` records each attempt.
    """

    def __init__(
        self,
        subject: Callable[..., Any],
        pending: Sequence[Symbolic],
        recording: CallAttempts,
        *,
        counts: bool = False,
    ) -> None:
        self.pending = list(pending)
        self.recording = recording
        self._may_count = counts
        self.reason = ""
        self.refused_value: DataDependent | None = None
        self._subject = subject
        self._prologues_of_errors: dict[tuple[Any, ...], list[Trace]] = {}  # by class and line of the error

    def pop_next(self) -> Symbolic:
        """Remove the next attempt from the pending attempts, and return it."""
        if not self.pending:
            raise Bug("a call was not compiled", fix="report this with the program that was compiled")
        return self.pending.pop(0)

    def after(self, tried: Symbolic, error: BaseException) -> Symbolic | None:
        """Return the next attempt after an attempt raised an error; None if the caller must raise the error."""
        self.recording.end(error)
        cause = error.reason if isinstance(error, Retrace) else error
        reaction = next(reaction for kind, reaction in REACTIONS.items() if isinstance(cause, kind))
        has_next = reaction(self, tried, cause)
        return self.pop_next() if has_next else None

    def _drop_hopeless(self, tried: Symbolic) -> None:
        """Drop the pending attempts that cannot succeed, because this attempt has failed."""
        self.pending = [attempt for attempt in self.pending if not tried.is_like(attempt)]

    # ---- reactions: each changes the pending attempts, and returns True if the next attempt is made ------------------

    def _on_symbol_use(self, tried: Symbolic, reason: MeetsSymbol) -> bool:
        """Make the next attempt. If this attempt ran to its end, it used all symbols, so drop similar attempts."""
        if reason.is_complete:
            self._drop_hopeless(tried)
        return True

    def _on_failed_guard(self, tried: Symbolic, error: GuardFailed) -> bool:  # noqa: ARG002
        """Drop similar attempts, because a traced condition on symbolic sizes does not hold for the call."""
        return self._drop_similar(tried, NOT_FOR_THIS_CALL)

    def _on_strides_read(self, tried: Symbolic, reason: ReadsStrides) -> bool:  # noqa: ARG002
        """Let the next attempt decide for each size whether it is 1, because the program reads strides."""
        decided = tried.with_changes(oblivious=False, avoid_one_hints=False, decides_ones=True)
        self.pending = [decided, *(attempt for attempt in self.pending if not attempt.sizes)]
        return True

    def _on_decisions_for_other_calls(self, tried: Symbolic, reason: DecidesForOtherCalls) -> bool:
        """Let the next attempt use the sizes of this call as hints, because the decisions do not hold for this call."""
        if not reason.violated - tried.real_hints_for:
            return self._drop_similar(tried, NOT_FOR_THIS_CALL)
        self.reason = self.reason or NOT_FOR_THIS_CALL
        self.pending.insert(0, tried.with_changes(real_hints_for=tried.real_hints_for | reason.violated))
        return True

    def _on_lost_kernels(self, tried: Symbolic, reason: LosesKernels) -> bool:
        """Drop similar attempts, because an executor has no kernels for symbolic sizes."""
        return self._drop_similar(tried, reason.refusal)

    def _on_needed_numbers(self, tried: Symbolic, reason: NeedsNumbers) -> bool:  # noqa: ARG002
        """Make numbers constant, because C code needs their values: first those in containers, then all numbers."""
        if not tried.may_have_symbols:
            raise Bug(
                f"{NEEDS_VALUES}, but all numbers are constants", fix="report this with the program that was compiled"
            )
        if tried.in_containers:
            self.pending.insert(0, tried.with_changes(in_containers=False))
            return True
        self.pending = [CONSTANT]
        return self._drop_similar(tried, NEEDS_VALUES)

    def _drop_similar(self, tried: Symbolic, reason: str) -> bool:
        """Drop the attempts that would fail in the same way, set `reason` if it is not set, and return True."""
        self.reason = self.reason or reason
        self._drop_hopeless(tried)
        return True

    def _on_error(self, tried: Symbolic, error: Exception) -> bool:
        """Make the next attempt if symbolic values may have caused the error.

        Otherwise, the caller raises the error.
        """
        if isinstance(error, ProgramRaised):
            self._join_prologues(error)
        if not self.pending or tried.is_constant:
            return False
        if is_own_error(error):
            report_own_error(error)
            what = f"is compiled for constant sizes, because Thunder failed with symbolic sizes ({summary_of(error)})"
            warn_of(self._subject, what, REPORT, SymbolicAttemptWarning)
        return self._drop_similar(tried, first_line(error) or type(error).__name__)

    def _on_tensor_value(self, tried: Symbolic, error: DataDependent) -> bool:
        """Add attempts in which sizes that depend on tensor values are symbols, once per call, if this is allowed.

        Otherwise, react as to any other error.
        """
        if tried.counts:
            self.refused_value = error
        if not self._may_count:
            return self._on_error(tried, error)
        self._may_count = False
        counting = tried.with_changes(sizes=True, counts=True)
        # If the attempts with such symbols fail, this attempt is made again without them.
        self.pending = [counting.with_changes(avoid_one_hints=True), counting, tried.with_changes(), *self.pending]
        return True

    def _join_prologues(self, raised: ProgramRaised) -> None:
        """Add to this error the prologues of earlier attempts that raised the same error at the same line."""
        prologues = self._prologues_of_errors.setdefault((type(raised.error), raised.where), [])
        prologues.extend(raised.prologues)
        raised.prologues = tuple(prologues)


# The reaction to an error, or to a reason to trace again, by its class. The first class that matches is used.
REACTIONS: Mapping[type, Callable[[TracingAttempts, Symbolic, Any], bool]] = {
    MeetsSymbol: TracingAttempts._on_symbol_use,
    GuardFailed: TracingAttempts._on_failed_guard,
    ReadsStrides: TracingAttempts._on_strides_read,
    DecidesForOtherCalls: TracingAttempts._on_decisions_for_other_calls,
    LosesKernels: TracingAttempts._on_lost_kernels,
    NeedsNumbers: TracingAttempts._on_needed_numbers,
    FillsCache: lambda attempts, tried, reason: False,  # the caller then makes the call in eager PyTorch
    RunsInEager: lambda attempts, tried, reason: False,  # the caller then makes the call in eager PyTorch
    DataDependent: TracingAttempts._on_tensor_value,
    Exception: TracingAttempts._on_error,
}
