"""The interface of an acquisition for its own parts, which it imports and which do not import it."""

from __future__ import annotations

from typing import Protocol

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

    def place(self) -> Place:
        """The line of the program that runs now, and its module."""

    def name_number(self, path: Path) -> str:
        """The name of the number at a path, as an input."""
