"""A planted fault, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.planted.subject import Subject
from thunder_core.backend.runtime.program import Program
from thunder_core.workflow.validation.inside import Fault


@dataclass(frozen=True)
class Plant:
    """A fault to be planted: its kind, where it stands, how to plant it, and whether faults that are found name it.

    `changes` says whether a program with it does something else; by default that is asked of the subject's own call.
    """

    kind: str
    subject: Subject
    what: str
    program: Callable[[], Program]
    is_named_by: Callable[[Sequence[Fault]], bool]
    probe_guards: bool = False
    changes: Callable[[Program], bool] | None = None

    def outcome(self) -> Outcome:
        """Plant the fault, look whether it changes anything, and look for it."""
        program = self.program()
        changes = (self.changes or self.subject.changes)(program)
        faults: tuple[Fault, ...] = ()
        error = ""
        try:
            faults = self.subject.examined(program, probe_guards=self.probe_guards)
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
        is_named = bool(faults) and self.is_named_by(faults)
        return Outcome(self.kind, self.subject.family, self.what, changes, faults, is_named, error)


@dataclass(frozen=True)
class Outcome:
    """A fault that was planted: whether it changes a value at all, what was found, and whether that names its line."""

    kind: str
    family: str
    what: str
    changes: bool
    faults: tuple[Fault, ...]
    named: bool
    error: str = ""

    @property
    def caught(self) -> bool:
        """Whether anything was found."""
        return bool(self.faults)

    @property
    def counts(self) -> bool:
        """Whether it is to be caught: it changes a value, of a call or inside."""
        return self.changes or self.caught

    def __str__(self) -> str:
        found = "; ".join(f"{fault.kind} `{fault.line:.120}`: {fault.difference:.100}" for fault in self.faults[:2])
        return f"{self.kind}, {self.family}: {self.what:.200}\n    found: {found or self.error or 'nothing'}"


def names_line(line: str) -> Callable[[Sequence[Fault]], bool]:
    """Whether faults are all of one line, which is this."""
    return lambda faults: {fault.line for fault in faults} == {line}
