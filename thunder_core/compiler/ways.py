"""The ways to trace a call, with symbolic numbers and sizes and without, and what follows where one cannot be taken."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thunder_core.acquire.numbers import NeedsValues
from thunder_core.acquire.symbolic import CONSTANT, IsSymbolic, Symbolic
from thunder_core.autodiff.tape import first_line
from thunder_core.compiler.own_errors import is_own_error, of_own_error
from thunder_core.errors import SymbolicAttemptWarning
from thunder_core.runtime.library.objects import GuardFailed
from thunder_core.runtime.retraces import warn_of

NOT_FOR_THIS_CALL = "what was decided by sizes does not hold for the call"
NEEDS_VALUES = "C code looks at numbers inside of a container"


class NotForThisCall(Exception):
    """A program that was compiled for symbolic sizes does not serve the call, or perhaps not as eager PyTorch does.

    `violated` names the sizes by which was decided what does not hold for it.
    """

    def __init__(self, violated: frozenset[str] = frozenset()) -> None:
        super().__init__(NOT_FOR_THIS_CALL)
        self.violated = violated


class AsksStrides(Exception):
    """A program asks for strides of what it computes, which for sizes of one are not those for all others."""


class LosesKernels(Exception):
    """An executor leaves to others, because sizes are symbolic, what it runs for the sizes of a call."""


class Ways:
    """The ways to trace a call that are still to be tried, and why those with symbolic sizes could not be taken."""

    def __init__(self, subject: Callable[..., Any], pending: Sequence[Symbolic]) -> None:
        self.pending = list(pending)
        self.reason = ""
        self._subject = subject

    def take(self) -> Symbolic:
        """The way to try next."""
        return self.pending.pop(0)

    def drop_like(self, tried: Symbolic) -> None:
        """Try no way that would do what one has done which was tried."""
        self.pending = [way for way in self.pending if not tried.is_like(way)]

    def react(self, tried: Symbolic, error: BaseException) -> bool:
        """Choose what to try next behind the error of a way; False where nothing is left, and the error holds."""
        reaction = next(react for kind, react in REACTIONS.items() if isinstance(error, kind))
        return reaction(self, tried, error)

    def _at_symbol(self, tried: Symbolic, error: BaseException) -> bool:  # noqa: ARG002
        """Something is symbolic, which was all that a probe was to tell."""
        return True

    def _at_guard(self, tried: Symbolic, error: BaseException) -> bool:  # noqa: ARG002
        """A condition on a number of Python's that was computed from another size does not hold for the call."""
        self.reason = self.reason or NOT_FOR_THIS_CALL
        self.drop_like(tried)
        return True

    def _at_strides(self, tried: Symbolic, error: BaseException) -> bool:  # noqa: ARG002
        """The program asks for strides, so of each size it has to be decided whether it is one."""
        decided = tried.again(oblivious=False, avoid_one_hints=False, decides_ones=True)
        self.pending = [decided, *(way for way in self.pending if not way.sizes)]
        return True

    def _at_another_call(self, tried: Symbolic, error: NotForThisCall) -> bool:
        """The program would serve other calls: the sizes by which that was decided keep their own hints."""
        self.reason = self.reason or NOT_FOR_THIS_CALL
        if error.violated - tried.real_hints_for:
            self.pending.insert(0, tried.again(real_hints_for=tried.real_hints_for | error.violated))
        else:
            self.drop_like(tried)
        return True

    def _at_values(self, tried: Symbolic, error: BaseException) -> bool:  # noqa: ARG002
        """C code needs plain numbers in containers: first there alone, and then everywhere."""
        if tried.in_containers and tried.may_be:
            self.pending.insert(0, tried.again(in_containers=False))
        else:
            self.reason, self.pending = self.reason or NEEDS_VALUES, [CONSTANT]
            self.drop_like(tried)
        return True

    def _at_error(self, tried: Symbolic, error: Exception) -> bool:
        """Anything else is an error of the program, unless symbols are there that may have caused it."""
        if not self.pending or tried.is_constant:
            return False
        if is_own_error(error):
            warn_of(self._subject, *of_own_error(error), SymbolicAttemptWarning)
        self.reason = self.reason or first_line(error) or type(error).__name__
        self.drop_like(tried)
        return True


# The first that an error is of is the one that counts.
REACTIONS: Mapping[type[BaseException], Callable[[Ways, Symbolic, Any], bool]] = {
    IsSymbolic: Ways._at_symbol,
    GuardFailed: Ways._at_guard,
    AsksStrides: Ways._at_strides,
    NotForThisCall: Ways._at_another_call,
    NeedsValues: Ways._at_values,
    Exception: Ways._at_error,
}
