"""Calls that run in eager PyTorch: for lazy parameters, too many values, and what no trace can represent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, MutableSequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from thunder_core.backend.runtime.observed_values import ObservedValues
from thunder_core.backend.runtime.program_compiler import ProgramCompiler
from thunder_core.backend.runtime.raising import GuardedCall
from thunder_core.backend.runtime.retraces import OFTEN, is_line_of, warn_of
from thunder_core.foundation.errors import CannotReplay, DataDependent, ThunderError
from thunder_core.tracing.ir.retrace import RunsInEager

KEPT = 8  # kinds of calls in eager PyTorch, for each subject; each traced call checks all of them


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
    observed: ObservedValues
    reasons: MutableSequence[str]
    is_on: bool = False

    def leave_to_eager(self, too_many: DataDependent) -> None:
        """Leave the function around a line with too many values to eager PyTorch, or else all calls.

        Raises `too_many` if eager PyTorch would compute something else than the programs.
        """
        line = too_many.where
        if self.compiler.differs_from_eager or line is None:
            raise too_many
        if line in self.observed.eager_lines or is_line_of(self.subject, line):
            self.turn_on(too_many)
        else:
            self._note("the function around this line is called in eager PyTorch", too_many)
        self.observed.eager_lines |= {line}

    def turn_on(self, error: ThunderError) -> None:
        """Run all calls that no program accepts in eager PyTorch."""
        self.is_on = True
        self._note("calls that no program takes are made in eager PyTorch", error)

    def _note(self, what: str, error: ThunderError) -> None:
        """Warn once, and record as a reason, what runs in eager PyTorch because of a line."""
        self.reasons.append(f"{error.where}: {what}, since {error.what}")
        warn_of(self.subject, f"{what} ({error.where}), since {error.what}", error.fix)


@dataclass(eq=False)
class CallsInEager:
    """The calls of a subject that eager PyTorch makes, because no trace can represent them: their guards, latest first.

    The first call of a kind issues a warning. After some calls with the same cause but other guards, eager PyTorch
    makes all calls that no program accepts (`is_on`).
    """

    subject: Callable[..., Any]
    reasons: MutableSequence[str]
    kinds: list[GuardedCall] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    is_on: bool = False

    def accept(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether these are the arguments of such a call."""
        return self.is_on or any(kind.takes(self.subject, args, kwargs) for kind in self.kinds)

    def note(self, reason: RunsInEager, *, keep: bool) -> None:
        """Record a call that no trace can represent, and warn of it; `keep` its guards for later calls."""
        if keep and reason.prologue is not None:
            self.kinds = [GuardedCall(reason.prologue), *self.kinds[: KEPT - 1]]
        what = f"{reason.where}: calls like this one are made in eager PyTorch, since {reason.what}"
        self.reasons.append(what)
        self.counts[what] += 1
        self.is_on = self.is_on or self.counts[what] == OFTEN
        if self.counts[what] == 1:
            warn_of(self.subject, f"cannot be traced at {what}", reason.fix)
