"""Files that users name: the reason why a file cannot be read, and its bytes up to a limit.

Devices and pipes are not opened, because they may have no end or no data.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def fault_of_file(path: Path) -> str:
    """Return why a path cannot be read as a file, as the end of a sentence; empty if it can be read."""
    try:
        status = path.stat()
    except OSError as error:
        return "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read: {reason_of(error)}"
    except ValueError as error:  # a zero byte in the name
        return f"cannot be read: {error}"
    if stat.S_ISDIR(status.st_mode):
        return "cannot be read: Is a directory"
    if not stat.S_ISREG(status.st_mode):
        return "cannot be read: it is a device or a pipe, not a file"
    return "" if os.access(path, os.R_OK) else "cannot be read: Permission denied"


def read_plain(path: Path, max_bytes: int) -> bytes:
    """Return the bytes of a file; raise OSError if the file cannot be read or has more than `max_bytes` bytes."""
    if fault := fault_of_file(path):
        raise OSError(fault)
    with path.open("rb") as file:
        content = file.read(max_bytes + 1)
    if len(content) > max_bytes:
        raise OSError(f"cannot be read: it has more than {max_bytes} bytes")
    return content


def reason_of(error: OSError) -> str:
    """Return the operating system's text for an error."""
    return error.strerror or str(error)
