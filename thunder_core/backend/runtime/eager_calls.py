"""Calls that run in eager PyTorch: with lazy parameters, too many values, or operations that no trace represents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, MutableSequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from thunder_core.backend.runtime.generate import executable
from thunder_core.backend.runtime.observed_values import ObservedValues
from thunder_core.backend.runtime.program_compiler import ProgramCompiler
from thunder_core.backend.runtime.retraces import RETRACES_BEFORE_WARNING, is_line_of, warn_of
from thunder_core.backend.runtime.transformed import BENEATH
from thunder_core.foundation.errors import CannotReplay, DataDependent, OperationFailed, RecompileWarning, ThunderError
from thunder_core.foundation.options.compile_options import CompileOptions
from thunder_core.tracing.ir.printer import print_trace
from thunder_core.tracing.ir.retrace import RunsInEager
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.draws import take_back_draws
from thunder_core.tracing.library.tracers import FORWARD_AD

MAX_GUARDED_CALLS = 8  # prologues of each list; each call that is about to be traced checks all of them


@dataclass(eq=False)
class GuardedCall:
    """The calls for which the guards of a prologue hold."""

    prologue: Trace
    prepare: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.prepare = executable(print_trace(self.prologue), "prologue")

    def takes(self, subject: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether the guards hold for the arguments of a call."""
        try:
            self.prepare(subject, args, kwargs)
        except Exception:  # a path may run the user's code, which may raise anything: a refusal
            return False
        finally:
            take_back_draws(subject)
        return True


@dataclass(eq=False)
class GuardedCalls:
    """The latest `MAX_GUARDED_CALLS` guarded calls of a subject that run in eager PyTorch, latest first."""

    subject: Callable[..., Any]
    latest: list[GuardedCall] = field(default_factory=list)

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> GuardedCall | None:
        """Return the first guarded call whose guards hold for the arguments; None if there is none."""
        return next((call for call in self.latest if call.takes(self.subject, args, kwargs)), None)

    def add(self, call: GuardedCall) -> None:
        """Add a guarded call, and drop the oldest guarded call if there are more than `MAX_GUARDED_CALLS`."""
        self.latest = [call, *self.latest[: MAX_GUARDED_CALLS - 1]]

    def drop(self, dropped: GuardedCall) -> None:
        """Remove a guarded call, if the list contains it."""
        self.latest = [call for call in self.latest if call is not dropped]


def is_uninitialized(subject: Callable[..., Any]) -> bool:
    """Whether a module has lazy parameters or buffers, which its first call, in eager PyTorch, materializes."""
    if not isinstance(subject, torch.nn.Module):
        return False
    tensors = (*torch.nn.Module.parameters(subject), *torch.nn.Module.buffers(subject))
    return any(map(torch.nn.parameter.is_lazy, tensors))


def initialization(
    subject: Callable[..., Any], compiler: ProgramCompiler, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[], Any]:
    """Return the eager call that initializes lazy parameters; raise `CannotReplay` if eager PyTorch differs."""
    if compiler.differs_from_eager:
        raise CannotReplay(
            "lazy parameters get their shapes in eager PyTorch, where lookasides and parallel recipes do not apply",
            fix="call the module once before you compile it",
        )
    return partial(subject, *args, **kwargs)


@dataclass(eq=False)
class EagerFallback:
    """The fallback of a subject to eager PyTorch, when too many values of tensors determine its programs.

    First, new programs call only the function around the line that reads the values in eager PyTorch; the `eager_lines`
    of the `observed` values have these lines. If that does not suffice, the fallback `is_on`: all calls that no program
    accepts run in eager PyTorch.
    """

    subject: Callable[..., Any]
    compiler: ProgramCompiler
    options: CompileOptions
    observed: ObservedValues
    reasons: MutableSequence[str]
    is_on: bool = False

    def leave_rounded_value_to_eager(self, other_value: DataDependent) -> None:
        """Leave the function around a line to eager PyTorch, because it reads a value that programs round differently.

        Raises `other_value` if a transform may have changed the value, or with `data_dependent="retrace"`.
        """
        may_differ = not all(transform.cleans_up for transform in self.compiler.settings.transforms)
        if may_differ or self.options.data_dependent == "retrace":
            raise other_value from None
        self.leave_to_eager(other_value)

    def leave_to_eager(self, too_many: DataDependent) -> None:
        """Leave the function around a line with too many values to eager PyTorch, or else all calls.

        Raises `too_many` if eager PyTorch would compute other values than the programs.
        """
        line = too_many.where
        if self.compiler.differs_from_eager or line is None:
            raise too_many
        if line in self.observed.eager_lines or is_line_of(self.subject, line):
            self.turn_on(too_many)
        else:
            self._warn_and_record("the function around this line is called in eager PyTorch", too_many)
            self.observed.fallbacks = 0  # without the values, the program may be traced for symbolic sizes
        self.observed.eager_lines |= {line}

    def turn_on(self, error: ThunderError) -> None:
        """Run all calls that no program accepts in eager PyTorch."""
        self.is_on = True
        self._warn_and_record("calls that no program takes are made in eager PyTorch", error)

    def _warn_and_record(self, what: str, error: ThunderError) -> None:
        """Warn that the calls named by `what` run in eager PyTorch because of a line, and record the reason."""
        self.reasons.append(f"{error.where}: {what}, since {error.what}")
        warn_of(self.subject, f"{what} ({error.where}), since {error.what}", error.fix)


@dataclass(eq=False)
class CallsInEager:
    """The calls of a subject that eager PyTorch makes, because no trace can represent them.

    The first call for each cause issues a warning. After `RETRACES_BEFORE_WARNING` calls with the same cause but other
    guards, eager PyTorch makes all calls that no program accepts (`is_on`).

    Eager PyTorch makes no call beneath transforms of torch.func. It would not see the transforms of tensors that the
    subject closes over, and their derivatives would be zero.
    """

    subject: Callable[..., Any]
    reasons: MutableSequence[str]
    guarded: GuardedCalls = field(init=False)
    counts: Counter[str] = field(default_factory=Counter)
    is_on: bool = False

    def __post_init__(self) -> None:
        self.guarded = GuardedCalls(self.subject)

    def accept(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether eager PyTorch makes the call with these arguments."""
        return not BENEATH.calls and (self.is_on or self.guarded.find(args, kwargs) is not None)

    def note_forward_derivative(self) -> None:
        """Warn once that eager PyTorch makes calls at a level of forward-mode derivatives, which compute tangents."""
        self.note_once(f"is called inside {FORWARD_AD.name}: such calls are made in eager PyTorch", FORWARD_AD.fix)

    def note_once(self, what: str, fix: str) -> None:
        """Record the reason for calls in eager PyTorch, and warn of it at its first call."""
        if what not in self.reasons:
            self.reasons.append(what)
            warn_of(self.subject, what, fix)

    def note(self, reason: RunsInEager, *, keep: bool, category: type[UserWarning] = RecompileWarning) -> None:
        """Record a call that no trace can represent, and warn of it; `keep` its guards for later calls.

        Raises `OperationFailed` beneath transforms.
        """
        if BENEATH.calls:
            raise OperationFailed(reason.what, fix=reason.fix, where=reason.where)
        if keep and reason.prologue is not None:
            self.guarded.add(GuardedCall(reason.prologue))
        what = f"{reason.where or 'its end'}: calls like this one are made in eager PyTorch, since {reason.what}"
        self.reasons.append(what)
        self.counts[what] += 1
        self.is_on = self.is_on or self.counts[what] == RETRACES_BEFORE_WARNING
        if self.counts[what] == 1:
            warn_of(self.subject, f"cannot be traced at {what}", reason.fix, category)
