"""Files that cannot be written: recognize the errors of full file systems, and raise `OutOfDisk`."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from thunder_core.foundation.errors import OutOfDisk, OutputNotWritable
from thunder_core.foundation.storage.plain_file import reason_of


class FullDisk(NamedTuple):
    """The reason why a file system accepts no more data, and the fix."""

    what: str
    fix: str


FREE_SPACE = "free disk space, or use a folder on another disk"
# The reasons and fixes by the number of the system's error.
FULL_DISKS: dict[int | None, FullDisk] = {
    errno.ENOSPC: FullDisk("the disk is full", FREE_SPACE),
    errno.EDQUOT: FullDisk("the user's disk quota is exhausted", FREE_SPACE),
    errno.EFBIG: FullDisk("a file would exceed this process's limit", "raise the limit (`ulimit -f`)"),
}
NO_FOLDER = "No usable temporary directory"  # the message of Python's `tempfile` if it can write to no folder
NO_TEMPORARY = FullDisk(
    "there is no writable folder for temporary files", "free disk space, or set TMPDIR to a writable folder"
)


def fullness(error: BaseException) -> FullDisk | None:
    """Return the reason and the fix if an error means that the file system accepts no more data; None otherwise."""
    if not isinstance(error, OSError):
        return None
    return NO_TEMPORARY if NO_FOLDER in str(error) else FULL_DISKS.get(error.errno)


@contextmanager
def report_full_disk(consequence: str, advice: str = "") -> Iterator[None]:
    """Raise `OutOfDisk` if the file system accepts no more data during the block.

    The message is the reason, followed by `consequence`. `advice` is appended to the fix.
    """
    try:
        yield
    except OSError as error:
        full = fullness(error)
        if full is None:
            raise
        raise OutOfDisk(f"{full.what}: {consequence}", fix=f"{full.fix}{advice}") from error


@contextmanager
def report_unwritable(path: Path, fix: str) -> Iterator[None]:
    """Raise `OutOfDisk` if the disk of `path` is full, and `OutputNotWritable` for any other OSError in the block."""
    try:
        with report_full_disk(f"{path} was not written"):
            yield
    except OSError as error:
        raise OutputNotWritable(f"{path} cannot be written: {reason_of(error)}", fix=fix) from error
