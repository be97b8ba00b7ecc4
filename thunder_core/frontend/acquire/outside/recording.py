"""The interface of a run for its parts, which cannot import the class of the run; and the output of the program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn, Protocol

from thunder_core.foundation.errors import SourceLine
from thunder_core.frontend.acquire.outside.outside_writes import OutsideWrites
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.acquire.outside.whole_reads import WholeReads
from thunder_core.frontend.interpreter.frame import Machine
from thunder_core.tracing.capture.location import Location
from thunder_core.tracing.capture.recorder import Recorder


@dataclass
class ProgramOutput:
    """The output of a program.

    `printed` has the number of bound symbols before a print, the printed value and the user's line. `streams` are the
    streams to which the program prints without naming them, and `log_handlers` are the handlers of its loggers.
    """

    printed: list[tuple[int, Any, SourceLine | None]] = field(default_factory=list)
    streams: list[Any] = field(default_factory=list)
    log_handlers: list[Any] = field(default_factory=list)


class Recording(Protocol):
    """One run of the program under the interpreter (`acquire.run.run.Run`)."""

    outside: WholeReads
    writes: OutsideWrites
    draws: Any
    recorder: Recorder
    machine: Machine
    output: ProgramOutput

    def location(self) -> Location:
        """Return the line of the program that runs now, and its module."""

    def note_edge(self, what: str, *, loud: bool = False) -> None:
        """Note a sharp edge at the program's current line.

        A `loud` edge is reported even if sharp edges are allowed.
        """

    def refuse(self, what: str, fix: str = ...) -> NoReturn:
        """Raise the error for an action that a trace cannot represent, and store the error."""

    def leave_to_eager(self, what: str, fix: str, where: SourceLine | None = None) -> NoReturn:
        """Raise the request that eager PyTorch makes this call, for an action that a trace cannot represent."""

    def name_number(self, path: Path) -> str:
        """Return the name of the number at a path, as an input of the trace."""

    def name_function(self, text: str) -> str:
        """Return an unused name for a sub-trace that resembles the text."""
