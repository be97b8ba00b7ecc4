"""The interface of an acquisition for its parts. The acquisition imports its parts; they import only this."""

from __future__ import annotations

from typing import Any, NoReturn, Protocol

import torch

from thunder_core.foundation.errors import SourceLine
from thunder_core.frontend.acquire.outside.outside_writes import OutsideWrites
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.acquire.outside.whole_reads import WholeReads
from thunder_core.frontend.interpreter.frame import Machine
from thunder_core.tracing.capture.place import Place
from thunder_core.tracing.capture.recorder import Recorder


class Recording(Protocol):
    """One run of the program under the interpreter (`acquire.observer.Acquisition`)."""

    outside: WholeReads
    writes: OutsideWrites
    recorder: Recorder
    machine: Machine
    device: torch.device | None
    printed: list[tuple[int, Any, SourceLine | None]]

    def place(self) -> Place:
        """The line of the program that runs now, and its module."""

    def note_edge(self, what: str, *, loud: bool = False) -> None:
        """Note a sharp edge at the program's present line; a `loud` edge is reported wherever it is allowed."""

    def refuse(self, what: str, fix: str = ...) -> NoReturn:
        """Raise the error for something that a trace cannot hold; it is kept, in case the program swallows it."""

    def name_number(self, path: Path) -> str:
        """The name of the number at a path, as an input."""
