"""A planted fault and its outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.planted.subject import Subject
from thunder_core.backend.runtime.program import Program
from thunder_core.workflow.validation.internal_check import Fault


@dataclass(frozen=True)
class Plant:
    """A fault to plant: its kind, its location, a function that plants it, and a check whether the reported faults name
    it.

    `changes` is whether the faulty program has another outcome. By default the subject's call decides.
    """

    kind: str
    subject: Subject
    what: str
    program: Callable[[], Program]
    is_named_by: Callable[[Sequence[Fault]], bool]
    probe_guards: bool = False
    changes: Callable[[Program], bool] | None = None

    def outcome(self) -> Outcome:
        """Plant the fault, check whether it changes a value, and examine the program."""
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
    """A planted fault: whether it changes a value, the faults that were found, and whether they name its line."""

    kind: str
    family: str
    what: str
    changes: bool
    faults: tuple[Fault, ...]
    named: bool
    error: str = ""

    @property
    def caught(self) -> bool:
        """Whether any fault was found."""
        return bool(self.faults)

    @property
    def counts(self) -> bool:
        """Whether the fault must be found: it changes a value of a call, or an intermediate value."""
        return self.changes or self.caught

    def __str__(self) -> str:
        found = "; ".join(f"{fault.kind} `{fault.line:.120}`: {fault.difference:.100}" for fault in self.faults[:2])
        return f"{self.kind}, {self.family}: {self.what:.200}\n    found: {found or self.error or 'nothing'}"


def names_line(line: str) -> Callable[[Sequence[Fault]], bool]:
    """Return a check whether all found faults are of this line."""
    return lambda faults: {fault.line for fault in faults} == {line}
