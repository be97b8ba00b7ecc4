"""The attempts to trace a call, with symbolic numbers and sizes and without, and what to try after one that failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thunder_core.backend.runtime.retraces import warn_of
from thunder_core.compilation.compiler.own_errors import is_own_error, of_own_error
from thunder_core.foundation.errors import DataDependent, SymbolicAttemptWarning
from thunder_core.frontend.acquire.numbers import NeedsValues
from thunder_core.frontend.acquire.outside.symbolic import CONSTANT, IsSymbolic, Symbolic
from thunder_core.passes.autodiff.tape import first_line
from thunder_core.tracing.capture.symbolic.sizes import DecidesAgainstCall
from thunder_core.tracing.ir.raised import ProgramRaised
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.objects import GuardFailed

NOT_FOR_THIS_CALL = "a decision based on sizes does not hold for the call"
NEEDS_VALUES = "C code reads numbers inside a container"


class NotForThisCall(Exception):
    """A program that was compiled for symbolic sizes does not serve the call, or perhaps not as eager PyTorch does.

    `violated` names the sizes that were asked for a condition which does not hold for the call.
    """

    def __init__(self, violated: frozenset[str] = frozenset()) -> None:
        super().__init__(NOT_FOR_THIS_CALL)
        self.violated = violated


class AsksStrides(Exception):
    """A program asks for strides of tensors that it computes, which differ for sizes of one."""


class LosesKernels(Exception):
    """An executor refuses, because sizes are symbolic, bound symbols that it runs for the sizes of a call."""


class TracingAttempts:
    """The `pending` attempts to trace a call, and the `reason` why those with symbolic sizes failed.

    With `counts`, a program that asks for the value of a tensor is traced with symbols for the sizes that tensors tell.
    """

    def __init__(self, subject: Callable[..., Any], pending: Sequence[Symbolic], *, counts: bool = False) -> None:
        self.pending = list(pending)
        self._may_count = counts
        self.reason = ""
        self._subject = subject
        self._prologues_of_errors: dict[tuple[Any, ...], list[Trace]] = {}

    def take(self) -> Symbolic:
        """Take the attempt to make next."""
        return self.pending.pop(0)

    def drop_like(self, tried: Symbolic) -> None:
        """Drop the attempts that would do the same as one that was tried."""
        self.pending = [attempt for attempt in self.pending if not tried.is_like(attempt)]

    def react(self, tried: Symbolic, error: BaseException) -> bool:
        """Choose what to try after an attempt's error; return False if nothing is left, so that the error stands."""
        reaction = next(react for kind, react in REACTIONS.items() if isinstance(error, kind))
        return reaction(self, tried, error)

    def _at_symbol(self, tried: Symbolic, error: BaseException) -> bool:  # noqa: ARG002
        """Go on: something is symbolic, which was all that a probe was to find out."""
        return True

    def _at_guard(self, tried: Symbolic, error: BaseException) -> bool:  # noqa: ARG002
        """Drop like attempts: a condition on a number computed from another size does not hold for the call."""
        self.reason = self.reason or NOT_FOR_THIS_CALL
        self.drop_like(tried)
        return True

    def _at_strides(self, tried: Symbolic, error: BaseException) -> bool:  # noqa: ARG002
        """Decide of each size whether it is one, since the program asks for strides."""
        decided = tried.with_changes(oblivious=False, avoid_one_hints=False, decides_ones=True)
        self.pending = [decided, *(attempt for attempt in self.pending if not attempt.sizes)]
        return True

    def _at_another_call(self, tried: Symbolic, error: NotForThisCall | DecidesAgainstCall) -> bool:
        """Keep the call's own sizes as hints where other hints made a program that serves other calls."""
        self.reason = self.reason or NOT_FOR_THIS_CALL
        if error.violated - tried.real_hints_for:
            self.pending.insert(0, tried.with_changes(real_hints_for=tried.real_hints_for | error.violated))
        else:
            self.drop_like(tried)
        return True

    def _at_values(self, tried: Symbolic, error: BaseException) -> bool:  # noqa: ARG002
        """Make numbers plain, since C code needs them: first those in containers, and then all."""
        if tried.in_containers and tried.may_be:
            self.pending.insert(0, tried.with_changes(in_containers=False))
        else:
            self.reason, self.pending = self.reason or NEEDS_VALUES, [CONSTANT]
            self.drop_like(tried)
        return True

    def _at_error(self, tried: Symbolic, error: Exception) -> bool:
        """Let an error stand as the program's own, unless there are symbols that may have caused it."""
        if isinstance(error, ProgramRaised):
            self._share(error)
        if not self.pending or tried.is_constant:
            return False
        if is_own_error(error):
            warn_of(self._subject, *of_own_error(error), SymbolicAttemptWarning)
        self.reason = self.reason or first_line(error) or type(error).__name__
        self.drop_like(tried)
        return True

    def _at_tensor_value(self, tried: Symbolic, error: DataDependent) -> bool:
        """Try symbols for the sizes that tensors tell, once; where values decide anything else, the error stands."""
        if not self._may_count:
            return self._at_error(tried, error)
        self._may_count = False
        counting = tried.with_changes(sizes=True, counts=True)
        self.pending = [counting.with_changes(avoid_one_hints=True), counting, tried.with_changes(), *self.pending]
        return True

    def _share(self, raised: ProgramRaised) -> None:
        """Let the program that raised take the calls that it took where it raised alike with symbolic sizes."""
        alike = self._prologues_of_errors.setdefault((type(raised.error), raised.where), [])
        alike.extend(raised.prologues)
        raised.prologues = tuple(alike)


# The first class that an error is an instance of counts.
REACTIONS: Mapping[type[BaseException], Callable[[TracingAttempts, Symbolic, Any], bool]] = {
    IsSymbolic: TracingAttempts._at_symbol,
    GuardFailed: TracingAttempts._at_guard,
    AsksStrides: TracingAttempts._at_strides,
    NotForThisCall: TracingAttempts._at_another_call,
    DecidesAgainstCall: TracingAttempts._at_another_call,
    NeedsValues: TracingAttempts._at_values,
    DataDependent: TracingAttempts._at_tensor_value,
    Exception: TracingAttempts._at_error,
}
