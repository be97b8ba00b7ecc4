"""The exception by which an acquisition tells that the program itself has raised, and under which guards it does."""

from __future__ import annotations

from thunder_core.errors import SourceLine
from thunder_core.ir.trace import Trace


class ProgramRaised(Exception):
    """A program raised `error` at the line `where` while it was traced; tracing has left no mark.

    The program raises again where the `prologue` takes the arguments and tensors hold the same values. It is `sharp`
    where it met what no prologue can guard.
    """

    def __init__(self, error: BaseException, where: SourceLine | None, prologue: Trace, *, sharp: bool) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error
        self.where = where
        self.prologue = prologue
        self.sharp = sharp
