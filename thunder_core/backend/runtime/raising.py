"""Calls in which the user's code raises: they run in eager PyTorch, with all side effects before the error."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

from thunder_core.backend.runtime.eager_calls import CallsInEager, GuardedCall, GuardedCalls
from thunder_core.backend.runtime.program import Program
from thunder_core.backend.runtime.retracing import depends_on_values
from thunder_core.foundation.errors import InternalErrorWarning, OperationFailed, SharpEdgeWarning
from thunder_core.tracing.ir.check import REPORT
from thunder_core.tracing.ir.own_errors import bug_of, is_own_error, report_own_error, summary_of
from thunder_core.tracing.ir.program_errors import ProgramRaised
from thunder_core.tracing.ir.retrace import RunsInEager
from thunder_core.tracing.library.draws import settle_draws, take_back_draws

FIX = "keep the line out of the compiled program, and report this"


@dataclass(eq=False)
class RaisingCalls:
    """The programs of a subject that raise an error, the latest first.

    `value_dependent` are the printed prologues under which the subject raised an error at one call and not at another,
    because the value of a tensor decides. A program with such a prologue is not kept again until another program is
    compiled; otherwise, calls that alternately raise and succeed would all run in eager PyTorch. If a compiled program
    fails, the call runs again in eager PyTorch only if the programs compute the same as eager PyTorch
    (`computes_as_eager`): no lookaside replaces calls, and no transform is parallel. Calls that raise only while they
    are traced are added to the calls `in_eager`.
    """

    subject: Callable[..., Any]
    in_eager: CallsInEager
    computes_as_eager: bool = True
    programs: GuardedCalls = field(init=False)
    value_dependent: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.programs = GuardedCalls(self.subject)

    def call_as_before(self, program: GuardedCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call that the guards of a raising program accept. The call runs in eager PyTorch.

        The call may still succeed, because the program does not guard the values of tensors. The program is then
        dropped, so that the next call under its guards is traced.
        """
        result = self.subject(*args, **kwargs)
        self.programs.drop(program)
        self.value_dependent.add(str(program.prologue))
        return result

    def call_first_time(
        self, raised: ProgramRaised, args: tuple[Any, ...], kwargs: dict[str, Any], *, keep: bool
    ) -> Any:
        """Make a call that raised while it was traced. The call runs in eager PyTorch.

        If the eager call does not raise, tracing caused the error. Eager PyTorch then makes all calls like this one, or
        `OperationFailed` is raised if no call may be left to eager PyTorch. If the program has a sharp edge, such as a
        value that differed while tracing, a `SharpEdgeWarning` is issued instead. An internal error of Thunder is
        reported as such.
        """
        program = self._program_of(raised, args, kwargs)
        if keep and str(program.prologue) not in self.value_dependent:
            self.programs.add(program)
        self.value_dependent.discard(str(program.prologue))
        result = self.subject(*args, **kwargs)
        self.programs.drop(program)
        if is_own_error(raised.error):
            self._note_own_error(raised, program, keep=keep)
        elif raised.sharp:
            warn_of_sharp_edges(raised)
        elif raised.may_run_in_eager:
            self.in_eager.note(RunsInEager(error_of_tracing(raised), FIX, raised.where, program.prologue), keep=keep)
        else:
            blame_tracing(raised)
        return result

    def _note_own_error(self, raised: ProgramRaised, program: GuardedCall, *, keep: bool) -> None:
        """Report an internal error. Raise `Bug` if no call may be left to eager PyTorch, or if the user requests it."""
        report_own_error(raised.error)
        if not raised.may_run_in_eager:
            raise bug_of(raised.error) from raised.error
        what = f"internal error of Thunder (TH7001, `{summary_of(raised.error)}`)"
        reason = RunsInEager(what, REPORT, raised.where, program.prologue)
        self.in_eager.note(reason, keep=keep, category=InternalErrorWarning)

    def _program_of(self, raised: ProgramRaised, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GuardedCall:
        """Return the guarded call for a call that raised while it was traced.

        Of the prologues that accept the call, the most general prologue is used.
        """
        *wider, last = map(GuardedCall, raised.prologues)
        return next((program for program in wider if program.takes(self.subject, args, kwargs)), last)

    def another_compiled(self) -> None:
        """Record that another program has been compiled, which accepts calls that do not raise."""
        self.value_dependent.clear()

    def call_after_failure(
        self, program: Program, failure: Exception, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """After a compiled program failed, run the call again in eager PyTorch for its side effects, if that is safe.

        Raises the error of eager PyTorch, or else the failure itself.
        """
        if self.computes_as_eager and program.is_repeatable and depends_on_values(failure):
            take_back_draws(self.subject)
            self.subject(*args, **kwargs)
            failure.add_note("  eager PyTorch does not fail: this call has run in eager, with its side effects")
        settle_draws(self.subject)
        raise failure


def error_of_tracing(raised: ProgramRaised) -> str:
    """Return a clause for messages, which reports an error that was raised only while tracing."""
    return f"`{summary_of(raised.error)}` was raised while tracing, but not by the same call in eager PyTorch"


def blame_tracing(raised: ProgramRaised) -> NoReturn:
    """Raise `OperationFailed` for an error that tracing caused."""
    what = f"{error_of_tracing(raised)}; the eager call has run, with its side effects"
    raise OperationFailed(what, fix=FIX, where=raised.where) from raised.error


def warn_of_sharp_edges(raised: ProgramRaised) -> None:
    """Warn that a call ran in eager PyTorch, because it raised an error only while it was traced."""
    location = ("<compiled>", 0) if raised.where is None else (raised.where.filename, raised.where.lineno)
    warnings.warn_explicit(
        f"sharp edge: {error_of_tracing(raised)}; this result is eager's, and nothing was compiled. The program reads "
        'values that no guard can check: sharp_edges="error" lists them',
        SharpEdgeWarning,
        *location,
    )
