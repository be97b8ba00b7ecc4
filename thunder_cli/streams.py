"""The standard streams of the process: closed streams, full disks, and closed pipes."""

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
    """Open the null device for each standard stream that is closed, as stdout is in `thunder ... >&-`.

    Otherwise, the next opened file would get the stream's file descriptor, and libraries would print into that file.
    """
    for number, name in NAMES.items():
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free descriptor, which is the closed stream's
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, MODES[number], encoding="utf-8", closefd=False))


def flush_results() -> None:
    """Write the buffered output to stdout; raise OSError if it cannot be written, for example on a full disk."""
    if sys.stdout is not None and not sys.stdout.closed:
        sys.stdout.flush()


def settle_streams() -> None:
    """Flush the streams, and discard output that cannot be written; the exit status already reports the error.

    Python flushes the streams again at its end. If that flush failed, Python would exit with status 120.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            with suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def is_closed_pipe(end: SystemExit) -> bool:
    """Whether a library calls `sys.exit` because the reader of its output, such as `head`, has closed the pipe."""
    return isinstance(end.__context__, BrokenPipeError)


def require_text(arguments: Sequence[str]) -> None:
    """Raise `BadOption` for an argument that is not UTF-8 text, because reports and manifests cannot contain it."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            shown = argument.encode(errors="surrogateescape").decode(errors="backslashreplace")
            raise BadOption(f"the argument {shown} is not valid UTF-8", fix="rename the file or folder") from error


def deleted_folder_error(error: BaseException) -> OutputNotWritable | None:
    """Return the error for a deleted working directory; None for any other error."""
    if not isinstance(error, FileNotFoundError):
        return None
    try:
        os.getcwd()  # noqa: PTH109 - `Path.cwd` calls it
    except FileNotFoundError:
        return OutputNotWritable("the working directory has been deleted", fix="`cd` into a folder that exists")
    return None
