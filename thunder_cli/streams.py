"""The streams of the process: closed ones, full ones, and those whose reader has gone."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress

from thunder_core.foundation.errors import BadOption, OutputNotWritable

INPUT, OUTPUT, ERROR = range(3)
NAMES = {INPUT: "stdin", OUTPUT: "stdout", ERROR: "stderr"}
MODES = {INPUT: "r", OUTPUT: "w", ERROR: "w"}


def open_closed_streams() -> None:
    """Open the null device in the place of each standard stream that is closed, as in `thunder ... >&-`.

    Else the next file that is opened would take its number, and get what libraries print.
    """
    for number, name in NAMES.items():
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which takes the lowest number that is free: this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, MODES[number], encoding="utf-8", closefd=False))


def flush_results() -> None:
    """Write what was printed to stdout; raises OSError where that cannot be, as on a full disk."""
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def settle_streams() -> None:
    """Flush the streams, and discard what one of them does not take, which the exit status has told already.

    Python flushes them once more when it ends. Where that fails, the status of the process is 120.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_closed_pipe(end: SystemExit) -> bool:
    """Whether a library ends the process because the reader of its output has closed the pipe, as `head` does."""
    return isinstance(end.__context__, BrokenPipeError)


def require_text(arguments: Sequence[str]) -> None:
    """Raise `BadOption` for an argument that is no text in UTF-8, which no report and no manifest can hold."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            shown = argument.encode(errors="surrogateescape").decode(errors="backslashreplace")
            raise BadOption(f"the argument {shown} is not valid UTF-8", fix="rename the file or folder") from error


def gone_folder_of(error: BaseException) -> OutputNotWritable | None:
    """The error for a working folder that was deleted; None for any other error."""
    if not isinstance(error, FileNotFoundError):
        return None
    try:
        os.getcwd()  # noqa: PTH109 - which `Path.cwd` calls
    except FileNotFoundError:
        return OutputNotWritable("the working folder has been deleted", fix="`cd` into a folder that exists")
    return None
