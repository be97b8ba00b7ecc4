"""The exception that reports an error of the program during tracing, with the guards under which it occurs."""

from __future__ import annotations

from collections.abc import Mapping

from thunder_core.foundation.errors import SourceLine
from thunder_core.tracing.ir.trace import Trace


class ProgramRaised(Exception):
    """A program raised `error` at the line `where` while it was traced; tracing had no side effects.

    The program raises the error again if one of the `prologues` accepts the arguments and the tensors have the same
    values. More general prologues come first. `observed` has the numbers and sizes that the program read in this call,
    by path. `sharp` is True if the program read something that no prologue can guard. `may_run_in_eager` is True if
    only tracing raises the error, so that the call may run in eager PyTorch.
    """

    def __init__(
        self,
        error: BaseException,
        where: SourceLine | None,
        prologue: Trace,
        observed: Mapping[str, int | float],
        *,
        sharp: bool,
        may_run_in_eager: bool = False,
    ) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error
        self.where = where
        self.prologues: tuple[Trace, ...] = (prologue,)
        self.observed = observed
        self.sharp = sharp
        self.may_run_in_eager = may_run_in_eager
