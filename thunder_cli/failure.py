"""Errors as users see them, and the exit status of a command."""

from __future__ import annotations

import os
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass

from rich.text import Text

from thunder_cli.console import json_data, print_json, stderr
from thunder_cli.streams import deleted_folder_error, flush_results
from thunder_core.foundation.errors import (
    BadOption,
    Bug,
    Interrupted,
    OutOfDisk,
    OutOfMemory,
    RankFailed,
    ThunderError,
)
from thunder_core.foundation.errors.tree import first_line
from thunder_core.foundation.memory_limits import is_refused_memory, process_limits
from thunder_core.foundation.storage.full_disk import fullness
from thunder_core.tracing.extension.authorship import authors_error

TORCHRUN_VARIABLE = "TORCHELASTIC_RUN_ID"  # an environment variable that torchrun sets
FIRST_RANK_SECONDS = 10.0  # seconds that other ranks wait while the first rank reports an error of all ranks
CONTINUATION = "\n      "  # the lines of a message are indented, so that they differ from the other parts


@dataclass(frozen=True)
class Audience:
    """The form in which a command's errors are reported: as JSON on stdout, with a traceback, or in one line.

    A rank that `follows` the first rank prints an error in one line if another rank prints the error in full.
    """

    json: bool = False
    debug: bool = False
    follows: bool = False

    def prints_in_full(self, error: ThunderError) -> bool:
        """Whether no other rank prints this error. An error in the arguments is the same on all ranks."""
        return not self.follows or not isinstance(error, RankFailed | BadOption)


def report_error(error: BaseException, audience: Audience) -> int:
    """Report an error, and return its exit status."""
    thunder_error = thunder_error_for(error)
    if audience.debug:
        stderr().print("".join(traceback.format_exception(error)), end="")
    if not (audience.json and print_as_json(thunder_error)):
        with suppress(OSError, ValueError):  # the stream is full or closed; the exit status still reports the error
            text = error_text(thunder_error) if audience.prints_in_full(thunder_error) else error_line(thunder_error)
            stderr().print(text, soft_wrap=True)
            sys.stderr.flush()
    if audience.follows and isinstance(thunder_error, BadOption):
        wait_for_first_rank()
    return thunder_error.status


def wait_for_first_rank() -> None:
    """Under torchrun, let the first rank report the error: torchrun ends all ranks as soon as one rank has failed."""
    if TORCHRUN_VARIABLE in os.environ:
        time.sleep(FIRST_RANK_SECONDS)


def thunder_error_for(error: BaseException) -> ThunderError:
    """Return the exception itself if it is a ThunderError; else an error for a full machine, a plug-in or a bug."""
    if isinstance(error, ThunderError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return interrupt_error(error)
    return (
        deleted_folder_error(error)
        or full_disk_of(error)
        or out_of_memory_of(error)
        or authors_error(error)
        or bug_of(error)
    )


def interrupt_error(error: BaseException | None) -> ThunderError:
    """Return the error for Ctrl-C."""
    interrupted = Interrupted("interrupted; nothing was written", fix="run the command again when you are ready")
    interrupted.__cause__ = error
    return interrupted


def print_as_json(error: ThunderError) -> bool:
    """Print an error to stdout, and return whether it was written."""
    try:
        print_json("error/1", {"error": {**error.as_dict(), **findings_of(error)}})
        flush_results()
    except (OSError, ValueError):
        return False
    return True


def findings_of(error: ThunderError) -> dict[str, object]:
    """Return the measurements that were made before the error, as plain data."""
    findings: dict[str, object] = {}
    for name in ("report", "rows"):
        value = getattr(error, name, None)
        if value:
            parts = [json_data(part) for part in (value if isinstance(value, tuple) else (value,))]
            findings[name] = parts if isinstance(value, tuple) else parts[0]
    return findings


def full_disk_of(error: BaseException) -> OutOfDisk | None:
    """Return the error for a full file system, in any part of the run; None for any other error."""
    full = fullness(error)
    return OutOfDisk(full.what, fix=full.fix) if full else None


def out_of_memory_of(error: BaseException) -> OutOfMemory | None:
    """Return the error for an allocation that failed, in any part of the run; None for any other error."""
    if not is_refused_memory(error):
        return None
    limits = [f"{limit / 2**30:.1f} GiB" for limit in process_limits()]
    limits_text = f"; the limits of this process allow {min(limits)}" if limits else ""
    return OutOfMemory(
        f"out of memory{limits_text}: {first_line(error):.200}",
        fix="allow the process more memory (`ulimit -v`, `prlimit --as`), or use a smaller --batch, --seq or --dtype",
    )


def bug_of(error: BaseException) -> Bug:
    """Return the error for an unexpected exception, which is a bug."""
    message = first_line(error)
    return Bug(
        f"{type(error).__name__}: {message}" if message else type(error).__name__,
        fix="this is a bug in Thunder: please report it with the output of `--debug` and `thunder doctor --json`",
    )


def error_line(error: ThunderError) -> Text:
    """Return the error as one line: its code and the problem."""
    return Text.assemble(("error", "bold red"), (f" {error.code} ", "red"), error.what.partition("\n")[0])


def error_text(error: ThunderError) -> Text:
    """Return the error as text: the problem, the source line, the fix, and the command that explains it."""
    what, fix = (part.replace("\n", CONTINUATION) for part in (error.what, error.fix))
    text = Text.assemble(("error", "bold red"), (f" {error.code} ", "red"), what)
    if error.where is not None:
        text.append("\n   at ", "dim").append(str(error.where), "cyan")
    text.append("\n  fix ", "bold green").append(fix)
    return text.append(f"\n more thunder explain {error.code}", "dim")
