"""The root of the tree of errors, one branch for each exit status, and the source line that an error names."""

from __future__ import annotations

import copyreg
from dataclasses import dataclass
from typing import Any, ClassVar

from thunder_core.foundation.printable import printable
from thunder_core.foundation.quick_objects import with_quick_init


@with_quick_init
@dataclass(frozen=True)
class SourceLine:
    """A source line: file, 1-based line number and the function around it."""

    filename: str
    lineno: int
    function: str = ""

    def __str__(self) -> str:
        inside = f", in {self.function}" if self.function else ""
        return printable(f"{self.filename}:{self.lineno}{inside}")


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, which may be empty."""
    return str(error).strip().partition("\n")[0]


def message_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if the message is empty."""
    return (str(error).splitlines() or [type(error).__name__])[0]


class ThunderError(Exception):
    """An error with a message, a fix and, if known, the source line of the user's program."""

    code: ClassVar[str] = "TH0000"
    status: ClassVar[int] = 70

    def __init__(self, what: str, *, fix: str, where: SourceLine | None = None) -> None:
        self.what, self.fix = printable(what), printable(fix)  # both may quote text from outside Thunder
        super().__init__(self.what)
        self.where = where

    def __str__(self) -> str:
        lines = [f"[{self.code}] {self.what}"]
        if self.where is not None:
            lines.append(f"  at: {self.where}")
        return "\n".join([*lines, f"  fix: {self.fix}"])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle or copy the error with all its attributes, without calling the constructor again."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]

    def as_dict(self) -> dict[str, object]:
        """Return the error as plain data, for `--json`."""
        where = None if self.where is None else str(self.where)
        return {"code": self.code, "status": self.status, "what": self.what, "fix": self.fix, "where": where}


class Finding(ThunderError):
    """A requested check failed."""

    status = 1


class UsageError(ThunderError):
    """The command, its options or the configuration are wrong."""

    status = 2


class MissingRequirement(ThunderError):
    """The machine or the environment lacks a requirement."""

    status = 3


class ValidationError(ThunderError):
    """The optimized model differs from eager PyTorch by more than the recipe's tolerance."""

    status = 4
    faults: tuple[object, ...] = ()  # the wrong lines of the traces, in order, for code that catches the error


class BaselineError(ThunderError):
    """The benchmark is worse than the baseline allows, or misses the required speed-up."""

    status = 5


class ArtifactError(ThunderError):
    """The artifact was rejected: no part of it was used."""

    status = 6


class ResourceError(ThunderError):
    """The machine ran out of memory, disk or time."""

    status = 7


class UnsupportedError(ThunderError):
    """Thunder cannot compile the model or one of its operations.

    If the error is raised while a call is traced, and `runs_in_eager` is True, eager PyTorch makes the call, unless the
    options of `jit` forbid that.
    """

    status = 8
    runs_in_eager: bool = False


class InternalError(ThunderError):
    """An internal error of Thunder (a bug)."""

    status = 70
