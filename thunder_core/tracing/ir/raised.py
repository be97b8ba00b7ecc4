"""The exception by which an acquisition tells that the program itself has raised, and under which guards it does."""

from __future__ import annotations

from collections.abc import Mapping

from thunder_core.foundation.errors import SourceLine
from thunder_core.tracing.ir.trace import Trace


class ProgramRaised(Exception):
    """A program raised `error` at the line `where` while it was traced; tracing has left no mark.

    The program raises again where one of the `prologues` takes the arguments and tensors hold the same values; those
    for more calls come first. `observed` has the numbers and sizes from outside in this call by their paths. It is
    `sharp` where it met what no prologue can guard.
    """

    def __init__(
        self,
        error: BaseException,
        where: SourceLine | None,
        prologue: Trace,
        observed: Mapping[str, int | float],
        *,
        sharp: bool,
    ) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error
        self.where = where
        self.prologues: tuple[Trace, ...] = (prologue,)
        self.observed = observed
        self.sharp = sharp
