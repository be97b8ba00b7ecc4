"""Retraces of a subject: a reason that repeats is reported once, with advice."""

from __future__ import annotations

import inspect
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_core.backend.runtime.dispatch import refusal_site
from thunder_core.backend.runtime.program import Program
from thunder_core.backend.runtime.tracers import LIBRARIES
from thunder_core.foundation.errors import RecompileWarning, SourceLine
from thunder_core.foundation.printable import printable
from thunder_core.tracing.ir.requirement import StatedConstraint
from thunder_core.tracing.library.objects import GuardFailed, UnexpectedValue

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
RETRACES_BEFORE_WARNING = 3  # the number of retraces for the same reason at which a warning is issued
VALUE_FIX = "branch on a comparison rather than on the value of a tensor, or use torch.where"
# The advice by the class of the value that was found.
FIXES: tuple[tuple[tuple[type, ...], str], ...] = (
    ((torch.Tensor,), 'use jit(..., cache="symbolic values") for one program for many shapes, or pad to a few shapes'),
    ((bool, str, type(None)), "use only a few different values, or branch on the value outside the compiled function"),
    ((int, float), "pass it as a tensor, round it to a few values, or leave the code that needs its value uncompiled"),
    ((object,), "keep it the same from call to call, or read it outside the compiled function"),
)


@dataclass(eq=False)
class Retraces:
    """The number of times that a subject was traced again, by reason."""

    subject: Callable[..., Any]
    counts: Counter[str] = field(default_factory=Counter)
    reasons: dict[str, tuple[str, str]] = field(default_factory=dict)  # the last reason and its advice, by site
    dropped: bool = False

    def note(self, program: Program, error: Exception, reason: str) -> None:
        """Record that a program refused a call, which was traced; warn at the third retrace for the same reason."""
        site = refusal_site(program, error) if isinstance(error, GuardFailed) else type(error).__name__
        self.counts[site] += 1
        fix = fix_for_constraint(self.subject, program, error) or fix_for(error)
        self.reasons[site] = (reason, fix)
        if self.counts[site] == RETRACES_BEFORE_WARNING:
            self._warn(
                f"was traced again {RETRACES_BEFORE_WARNING} times for the same reason ({reason}), which takes time",
                fix,
            )

    def note_dropped(self, limit: int) -> None:
        """Warn, the first time, that the limit of programs is reached and a program was dropped."""
        if not self.dropped:
            self.dropped = True
            what = f"has more than {limit} programs; the least recently used one was dropped"
            site = max(self.counts, key=self.counts.__getitem__, default="")
            reason, fix = self.reasons.get(site, ("", "use inputs that differ less"))
            most = f"; {self.counts[site]} programs were made for the same reason ({reason})" if reason else ""
            self._warn(f"{what}{most}", f"{fix}; or allow more programs: jit(..., max_programs=...)")

    def _warn(self, what: str, fix: str) -> None:
        warn_of(self.subject, what, fix)


def warn_of(subject: Callable[..., Any], what: str, fix: str, category: type[UserWarning] = RecompileWarning) -> None:
    """Issue a warning about a subject, at the line that called the compiled subject."""
    name = subject_name(subject)
    warnings.warn(printable(f"{name} {what}; fix: {fix}"), category, stacklevel=callers_level())


def subject_name(subject: Callable[..., Any]) -> str:
    """Return the qualified name of a function or method, or of the class of a module or another callable object."""
    name = None if isinstance(subject, torch.nn.Module) else getattr(subject, "__qualname__", None)
    return name if isinstance(name, str) else type(subject).__qualname__


def is_line_of(subject: Callable[..., Any], line: SourceLine) -> bool:
    """Whether a line is in the subject's own code, which no compiled code calls."""
    own = getattr(subject, "forward", subject) if isinstance(subject, torch.nn.Module) else subject
    code = getattr(getattr(own, "__func__", own), "__code__", None)
    if code is None or code.co_filename != line.filename:
        return False
    return line.function == code.co_qualname or line.function.startswith(f"{code.co_qualname}.<locals>.")


def fix_for_constraint(subject: Callable[..., Any], program: Program, error: Exception) -> str:
    """Return the advice if a program refused a call by a constraint on a number or size; empty otherwise."""
    constraint = program.guard_of(error)
    if not isinstance(error, GuardFailed) or not isinstance(constraint, StatedConstraint):
        return ""
    name, is_asked = name_of(subject, constraint.number), "==" in constraint.condition
    what = f"its value (`{constraint.condition}`)" if is_asked else f"`{constraint.condition}`"
    fix = f"leave the code that needs {what} uncompiled, or use torch.where"
    if type(error.actual) is not int or not name:
        return fix
    return f"{fix}; symbolic={{{name!r}: (MINIMUM, MAXIMUM)}} makes one program for a whole range"


def name_of(subject: Callable[..., Any], path: str) -> str:
    """Return the name for `symbolic=` of an argument's number or size, by its path; empty for paths of other values."""
    root, _, rest = path.partition("[")
    key, _, steps = rest.partition("]")
    if root == "kwargs":
        return f"{key[1:-1]}{steps}"
    if root != "args" or not key.isdigit():
        return ""
    try:
        target = subject.forward if isinstance(subject, torch.nn.Module) else subject
        names = [p.name for p in inspect.signature(target).parameters.values() if p.kind in POSITIONAL]
    except (TypeError, ValueError):
        return ""
    return f"{names[int(key)]}{steps}" if int(key) < len(names) else ""


def fix_for(error: Exception) -> str:
    """Return the advice on how to avoid a retrace."""
    if isinstance(error, UnexpectedValue):
        return VALUE_FIX
    value = error.actual if isinstance(error, GuardFailed) else error
    return next(fix for classes, fix in FIXES if issubclass(type(value), classes))


def callers_level() -> int:
    """Return the number of frames from the calling function up to the nearest frame outside Thunder and PyTorch."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((*LIBRARIES, "<")):
        level, frame = level + 1, frame.f_back
    return level
