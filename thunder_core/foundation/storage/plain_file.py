"""Files that people name: what is wrong with one in words, and its bytes up to a bound.

A device or a pipe may have no end, or nothing to say, so none is opened.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def fault_of_file(path: Path) -> str:
    """The reason why a path cannot be read as a file, as the end of a sentence; empty where nothing is wrong."""
    try:
        found = path.stat()
    except OSError as error:
        return "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read: {reason_of(error)}"
    except ValueError as error:  # a zero byte in the name
        return f"cannot be read: {error}"
    if stat.S_ISDIR(found.st_mode):
        return "cannot be read: Is a directory"
    if not stat.S_ISREG(found.st_mode):
        return "cannot be read: it is a device or a pipe, not a file"
    return "" if os.access(path, os.R_OK) else "cannot be read: Permission denied"


def read_plain(path: Path, most: int) -> bytes:
    """The bytes of a file; raises OSError, whose message says what is wrong, for none or for more than `most`."""
    if fault := fault_of_file(path):
        raise OSError(fault)
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(f"cannot be read: it has more than {most} bytes")
    return content


def reason_of(error: OSError) -> str:
    """The reason of an error of the system, in its words."""
    return error.strerror or str(error)
