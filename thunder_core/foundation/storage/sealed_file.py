"""Problems with the files of sealed folders: each function describes one kind of problem in words.

The modules for artifacts and for the cache use these functions, and raise different errors with these words.
"""

from __future__ import annotations

import os
import stat


def fault_of_kind(status: os.stat_result) -> str:
    """Return the problem with a path that is not a plain file (a folder, a symbolic link, a pipe); empty for a file."""
    return "" if stat.S_ISREG(status.st_mode) else "is not a plain file"


def fault_of_size(status: os.stat_result, size: int) -> str:
    """Return the problem with a file whose size in bytes differs from the manifest; empty if the size is right."""
    return "" if status.st_size == size else f"has {status.st_size} bytes instead of {size}"


def fault_of_digest(actual: str, digest: str) -> str:
    """Return the problem with a file whose digest differs from the manifest; empty if the digest is right."""
    return "" if actual == digest else "does not match its digest in the manifest"
