"""File systems that take no more: how their errors are recognized and told."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from thunder_core.foundation.errors import OutOfDisk


class Fullness(NamedTuple):
    """The reason why a file system takes no more, and what can be done."""

    what: str
    fix: str


ROOM = "free disk space, or use a folder on another disk"
FULL: dict[int | None, Fullness] = {
    errno.ENOSPC: Fullness("the disk is full", ROOM),
    errno.EDQUOT: Fullness("the user's disk quota is exhausted", ROOM),
    errno.EFBIG: Fullness("a file would exceed this process's limit", "raise the limit (`ulimit -f`)"),
}
NO_FOLDER = "No usable temporary directory"  # Python's `tempfile` says so, where it could write to none
NO_TEMPORARY = Fullness(
    "there is no writable folder for temporary files", "free disk space, or set TMPDIR to a writable folder"
)


def fullness(error: BaseException) -> Fullness | None:
    """The reason why the file system takes no more; None for any other error."""
    if not isinstance(error, OSError):
        return None
    return NO_TEMPORARY if NO_FOLDER in str(error) else FULL.get(error.errno)


@contextmanager
def full_disk_told(consequence: str, advice: str = "") -> Iterator[None]:
    """Raise `OutOfDisk`, with what follows and what else can be done, where the file system takes no more."""
    try:
        yield
    except OSError as error:
        full = fullness(error)
        if full is None:
            raise
        raise OutOfDisk(f"{full.what}: {consequence}", fix=f"{full.fix}{advice}") from error
