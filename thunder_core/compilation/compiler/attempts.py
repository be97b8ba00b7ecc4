"""The attempts to trace a call, with and without symbolic numbers and sizes, and the reactions to failed attempts."""

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
    """The error for a program with symbolic sizes that does not accept the call, or may differ from eager PyTorch.

    `violated` are the names of the sizes in a condition that does not hold for the call.
    """

    def __init__(self, violated: frozenset[str] = frozenset()) -> None:
        super().__init__(NOT_FOR_THIS_CALL)
        self.violated = violated


class AsksStrides(Exception):
    """The error for a program that reads strides of computed tensors, which differ for sizes of one."""


class LosesKernels(Exception):
    """The error if an executor refuses bound symbols only because sizes are symbolic."""


class TracingAttempts:
    """The `pending` attempts to trace a call, and the `reason` why the attempts with symbolic sizes failed.

    If `counts` is set, a program that reads values of tensors is traced again with symbols for sizes that depend on
    these values.
    """

    def __init__(self, subject: Callable[..., Any], pending: Sequence[Symbolic], *, counts: bool = False) -> None:
        self.pending = list(pending)
        self._may_count = counts
        self.reason = ""
        self._subject = subject
        self._prologues_of_errors: dict[tuple[Any, ...], list[Trace]] = {}

    def take(self) -> Symbolic:
        """Remove and return the next attempt."""
        return self.pending.pop(0)

    def drop_like(self, tried: Symbolic) -> None:
        """Drop the pending attempts that are equivalent to an earlier attempt."""
        self.pending = [attempt for attempt in self.pending if not tried.is_like(attempt)]

    def react(self, tried: Symbolic, error: BaseException) -> bool:
        """Choose the next attempt after an error; return False if the caller must raise the error."""
        reaction = next(react for kind, react in REACTIONS.items() if isinstance(error, kind))
        return reaction(self, tried, error)

    def _at_symbol(self, tried: Symbolic, error: BaseException) -> bool:  # noqa: ARG002
        """Continue with the next attempt, because the probe has encountered a symbolic value."""
        return True

    def _at_guard(self, tried: Symbolic, error: BaseException) -> bool:  # noqa: ARG002
        """Drop similar attempts, because a condition on a number from another size does not hold for the call."""
        self.reason = self.reason or NOT_FOR_THIS_CALL
        self.drop_like(tried)
        return True

    def _at_strides(self, tried: Symbolic, error: BaseException) -> bool:  # noqa: ARG002
        """Decide for each size whether it is 1, because the program reads strides."""
        decided = tried.with_changes(oblivious=False, avoid_one_hints=False, decides_ones=True)
        self.pending = [decided, *(attempt for attempt in self.pending if not attempt.sizes)]
        return True

    def _at_another_call(self, tried: Symbolic, error: NotForThisCall | DecidesAgainstCall) -> bool:
        """Use sizes of this call as hints, because other hints led to a program that accepts only other calls."""
        self.reason = self.reason or NOT_FOR_THIS_CALL
        if error.violated - tried.real_hints_for:
            self.pending.insert(0, tried.with_changes(real_hints_for=tried.real_hints_for | error.violated))
        else:
            self.drop_like(tried)
        return True

    def _at_values(self, tried: Symbolic, error: BaseException) -> bool:  # noqa: ARG002
        """Make numbers constant because C code needs their values: first the numbers in containers, then all."""
        if tried.in_containers and tried.may_be:
            self.pending.insert(0, tried.with_changes(in_containers=False))
        else:
            self.reason, self.pending = self.reason or NEEDS_VALUES, [CONSTANT]
            self.drop_like(tried)
        return True

    def _at_error(self, tried: Symbolic, error: Exception) -> bool:
        """Try the next attempt if symbolic values may have caused the error; otherwise let the caller raise it."""
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
        """Try again with symbols for sizes that depend on tensor values; otherwise handle the error as others."""
        if not self._may_count:
            return self._at_error(tried, error)
        self._may_count = False
        counting = tried.with_changes(sizes=True, counts=True)
        self.pending = [counting.with_changes(avoid_one_hints=True), counting, tried.with_changes(), *self.pending]
        return True

    def _share(self, raised: ProgramRaised) -> None:
        """Join the prologues of all attempts that raised the same error at the same line into one program."""
        alike = self._prologues_of_errors.setdefault((type(raised.error), raised.where), [])
        alike.extend(raised.prologues)
        raised.prologues = tuple(alike)


# The reactions by the class of the error; the first matching class is used.
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
