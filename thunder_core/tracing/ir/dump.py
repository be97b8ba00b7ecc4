"""Traces as files: each stage of what is compiled, written as soon as it is there, where that is asked for.

`jit(..., dump=FOLDER)` asks for one subject, the variables `THUNDER_LOGS` and `THUNDER_LOGS_TO` for all of a process.
"""

from __future__ import annotations

import errno
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from thunder_core.foundation.errors import BadOption, OutOfDisk, OutputNotWritable
from thunder_core.foundation.plugins import unknown_name
from thunder_core.foundation.storage.full_disk import fullness
from thunder_core.tracing.ir.printer import print_trace
from thunder_core.tracing.ir.trace import Trace

TRACES = ("prologue", "computation", "tail", "backward", "epilogue")  # as they are called in `Trace.name`
ALL = "all"
VARIABLE, VARIABLE_TO = "THUNDER_LOGS", "THUNDER_LOGS_TO"
FOLDER = "thunder-logs"  # where the variable names none
LONGEST = 60  # characters of a name that others gave, in the name of a file
NOT_IN_NAMES = re.compile(r"[^\w.-]+")


class Sink(Protocol):
    """Takes the traces of one program, each as soon as it is made."""

    def write(self, trace: Trace) -> None:
        """Take the next stage of a trace."""


class NoSink:
    """Takes the traces of a program of which nothing is to be written."""

    def write(self, trace: Trace) -> None:
        """Leave it."""


@dataclass(frozen=True)
class ProgramFolder:
    """The folder of one program: a file for each stage, numbered in the order in which they were made."""

    folder: Path
    traces: frozenset[str]

    def write(self, trace: Trace) -> None:
        """Write the next stage of a trace, as it is printed elsewhere; raises `OutputNotWritable`."""
        if trace.name not in self.traces:
            return
        text = print_trace(trace).text
        with writing(self.folder):
            for number in itertools.count(len(list(self.folder.iterdir()))):
                if _is_new(self.folder / f"{number:02}-{trace.name}-{in_a_name(trace.made_by)}.py", text):
                    return


@dataclass(frozen=True)
class Dump:
    """A folder with a folder in it for each program that is compiled, and which traces are written there."""

    folder: Path
    traces: frozenset[str] = frozenset(TRACES)

    def program(self, subject: Callable[..., object]) -> ProgramFolder:
        """A new folder for a program of this subject (`LlamaForCausalLM-0`); raises `OutputNotWritable`."""
        name = in_a_name(name_of(subject))
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for number in itertools.count():
                place = self.folder / f"{name}-{number}"
                try:
                    place.mkdir()
                except FileExistsError:
                    continue
                return ProgramFolder(place, self.traces)
        raise AssertionError("numbers do not end")


def asked_dump(folder: str | os.PathLike[str] | None, environment: Mapping[str, str] = os.environ) -> Dump | None:
    """The dump that an option asks for or, without it, the environment; None where neither does.

    `THUNDER_LOGS` is `all` or names of traces with commas between them; `THUNDER_LOGS_TO` is the folder. Raises
    `UnknownName` for a trace that does not exist, `BadOption` for what is no folder.
    """
    words = [word.strip() for word in environment.get(VARIABLE, "").split(",") if word.strip()]
    for word in words:
        if word not in (*TRACES, ALL):
            raise unknown_name(f"trace (in {VARIABLE})", word, (*TRACES, ALL))
    traces = frozenset(TRACES if not words or ALL in words else words)
    if folder is not None:
        return Dump(_folder(folder))
    to = environment.get(VARIABLE_TO, "")
    return Dump(Path(to or FOLDER), traces) if words or to else None


def _folder(folder: str | os.PathLike[str]) -> Path:
    if not isinstance(folder, str | os.PathLike) or not str(folder):
        raise BadOption(f"dump={folder!r:.80} is not a folder", fix='name a folder: dump="traces"')
    return Path(folder)


def name_of(subject: Callable[..., object]) -> str:
    """The name of a function within the one that defines it, with its class's; of another object that of its class."""
    name = getattr(subject, "__qualname__", None)
    return name.rpartition("<locals>.")[2] if isinstance(name, str) else type(subject).__name__


def in_a_name(text: str) -> str:
    """A text as a part of a file's name."""
    return NOT_IN_NAMES.sub("-", text).strip("-")[:LONGEST] or "unnamed"


def _is_new(path: Path, text: str) -> bool:
    """Whether a file was not there and is now; two threads may write the backwards of one program."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return False
    return True


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise the error for a folder that cannot be written, or whose disk is full."""
    try:
        yield
    except OSError as error:
        if full := fullness(error):
            raise OutOfDisk(f"the traces cannot be written to {folder}: {full.what}", fix=full.fix) from error
        reason = os.strerror(error.errno or errno.EIO)
        raise OutputNotWritable(
            f"the traces cannot be written to {folder}: {reason}",
            fix=f"name another folder with `dump` or {VARIABLE_TO}, or leave out `dump`",
        ) from error
