"""Retraces of a subject: where the reason is the same again and again, it is said once, with a way out."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_core.errors import RecompileWarning
from thunder_core.printable import printable
from thunder_core.runtime.dispatch import place_of
from thunder_core.runtime.library.objects import GuardFailed, UnexpectedValue
from thunder_core.runtime.program import Program
from thunder_core.runtime.tracers import LIBRARIES

OFTEN = 3  # times for one reason
VALUE_FIX = "decide by a comparison rather than by a value of a tensor, or use torch.where"
# For what is found now, of one of these classes, what can be done.
FIXES: tuple[tuple[tuple[type, ...], str], ...] = (
    ((torch.Tensor,), 'jit(..., cache="symbolic values") makes one program for many shapes; or pad it to a few shapes'),
    ((bool, str, type(None)), "call it with few different values, or decide by it outside of what is compiled"),
    ((int, float), "pass it as a tensor, round it to a few values, or leave what needs its value uncompiled"),
    ((object,), "keep it the same from call to call, or read it outside of what is compiled"),
)


@dataclass(eq=False)
class Retraces:
    """Counts how often one subject was traced again, by the reason."""

    subject: Callable[..., Any]
    counts: Counter[str] = field(default_factory=Counter)
    dropped: bool = False

    def note(self, program: Program, error: Exception, reason: str) -> None:
        """A program did not take an input, which is traced: warn at the third time that it is for the same thing."""
        place = place_of(program, error) if isinstance(error, GuardFailed) else type(error).__name__
        self.counts[place] += 1
        if self.counts[place] == OFTEN:
            self._warn(f"was traced again {OFTEN} times for one reason ({reason}), which takes long", fix_for(error))

    def note_dropped(self, limit: int) -> None:
        """Warn, at the first time, that as many programs are kept as may be and one had to go."""
        if not self.dropped:
            self.dropped = True
            what = f"has more than {limit} programs, of which the one that was used longest ago was dropped"
            self._warn(what, "make its inputs differ less, or allow for more: jit(..., max_programs=...)")

    def _warn(self, what: str, fix: str) -> None:
        warn_of(self.subject, what, fix)


def warn_of(subject: Callable[..., Any], what: str, fix: str, category: type[UserWarning] = RecompileWarning) -> None:
    """Warn of a subject, at the line that called what was compiled."""
    name = getattr(subject, "__qualname__", type(subject).__name__)
    warnings.warn(printable(f"{name} {what}; fix: {fix}"), category, stacklevel=callers_level())


def fix_for(error: Exception) -> str:
    """The advice on what can be done against tracing again for this."""
    if isinstance(error, UnexpectedValue):
        return VALUE_FIX
    found = error.found if isinstance(error, GuardFailed) else error
    return next(fix for classes, fix in FIXES if isinstance(found, classes))


def callers_level() -> int:
    """The number of frames above the calling function to the nearest that is neither Thunder's nor PyTorch's."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((*LIBRARIES, "<")):
        level, frame = level + 1, frame.f_back
    return level
