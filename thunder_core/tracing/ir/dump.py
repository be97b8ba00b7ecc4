"""Write traces to files: on request, each stage of a compilation is written as soon as it exists.

The file `attempts.txt` in the folder of a program has a line for each attempt to trace the program.

`jit(..., dump=FOLDER)` requests this for one subject. The environment variables `THUNDER_LOGS` and `THUNDER_LOGS_TO`
request it for a process.
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
from thunder_core.foundation.similar_names import unknown_name
from thunder_core.foundation.storage.full_disk import fullness
from thunder_core.tracing.ir.printer import print_trace
from thunder_core.tracing.ir.trace import Trace

TRACES = ("prologue", "computation", "tail", "backward", "epilogue")  # the values of `Trace.name`
ATTEMPTS = "attempts"  # the name of the lines about attempts to trace
ALL = "all"
NAMES = (*TRACES, ATTEMPTS, ALL)  # the valid names in `THUNDER_LOGS`
VARIABLE, VARIABLE_TO = "THUNDER_LOGS", "THUNDER_LOGS_TO"
FOLDER = "thunder-logs"  # the default folder
MAX_NAME_LENGTH = 60  # characters of a program's or a step's name in the name of a file or folder
CHARACTERS_NOT_IN_NAMES = re.compile(r"[^\w.-]+")


class Sink(Protocol):
    """A receiver of the traces of one program, each as soon as it exists, and of lines about attempts to trace it."""

    def write(self, trace: Trace) -> None:
        """Process the next stage of a trace."""

    def write_attempt(self, text: str) -> None:
        """Process the line about an attempt that has ended."""


class NoSink:
    """A receiver that ignores the traces of a program."""

    def write(self, trace: Trace) -> None:
        """Ignore the trace."""

    def write_attempt(self, text: str) -> None:
        """Ignore the line."""


@dataclass(frozen=True)
class ProgramFolder:
    """The folder of one program: a file for each stage, numbered in the order of creation.

    `names` are the names of the traces to write, and `attempts` for the lines about attempts.
    """

    folder: Path
    names: frozenset[str]

    def write(self, trace: Trace) -> None:
        """Write the next stage of a trace in its printed form; raise `OutputNotWritable` if that fails."""
        if trace.name not in self.names:
            return
        text = print_trace(trace).text
        with writing(self.folder):
            for number in itertools.count(len(list(self.folder.glob("*.py")))):
                if _write_new_file(self.folder / f"{number:02}-{trace.name}-{file_name_part(trace.made_by)}.py", text):
                    return

    def write_attempt(self, text: str) -> None:
        """Append a line to `attempts.txt`; raise `OutputNotWritable` if that fails."""
        if ATTEMPTS in self.names:
            with writing(self.folder), (self.folder / f"{ATTEMPTS}.txt").open("a", encoding="utf-8") as file:
                file.write(f"{text}\n")


@dataclass(frozen=True)
class Dump:
    """A folder with a subfolder for each compiled program, and the names of what to write."""

    folder: Path
    names: frozenset[str] = frozenset(NAMES)

    def program(self, subject: Callable[..., object]) -> ProgramFolder:
        """Create the folder of a program (`LlamaForCausalLM-0`) and return it; raise `OutputNotWritable` on failure."""
        name = file_name_part(name_of(subject))
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for number in itertools.count():
                folder = self.folder / f"{name}-{number}"
                try:
                    folder.mkdir()
                except FileExistsError:
                    continue
                return ProgramFolder(folder, self.names)
        raise AssertionError("numbers do not end")


def requested_dump(folder: str | os.PathLike[str] | None, environment: Mapping[str, str] = os.environ) -> Dump | None:
    """Return the dump that the option or, without the option, the environment requests; None without a request.

    `THUNDER_LOGS` is `all`, or names of traces and `attempts`, separated by commas; `THUNDER_LOGS_TO` is the folder.
    Raises `UnknownName` for an unknown name, and `BadOption` for an invalid folder.
    """
    words = [word.strip() for word in environment.get(VARIABLE, "").split(",") if word.strip()]
    for word in words:
        if word not in NAMES:
            raise unknown_name(f"trace (in {VARIABLE})", word, NAMES)
    names = frozenset(NAMES if not words or ALL in words else words)
    if folder is not None:
        return Dump(_folder(folder))
    to = environment.get(VARIABLE_TO, "")
    return Dump(Path(to or FOLDER), names) if words or to else None


def _folder(folder: str | os.PathLike[str]) -> Path:
    if not isinstance(folder, str | os.PathLike) or not str(folder):
        raise BadOption(f"dump={folder!r:.80} is not a folder", fix='name a folder: dump="traces"')
    return Path(folder)


def name_of(subject: Callable[..., object]) -> str:
    """Return the qualified name of a function without outer functions, or the class name of another object."""
    name = getattr(subject, "__qualname__", None)
    return name.rpartition("<locals>.")[2] if isinstance(name, str) else type(subject).__name__


def file_name_part(text: str) -> str:
    """Convert a text into a part of a file name."""
    return CHARACTERS_NOT_IN_NAMES.sub("-", text).strip("-")[:MAX_NAME_LENGTH] or "unnamed"


def _write_new_file(path: Path, text: str) -> bool:
    """Create and write a file; return False if it exists, because two threads may write backwards of one program."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return False
    return True


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Raise `OutOfDisk` or `OutputNotWritable` if the block fails to write to a folder."""
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
