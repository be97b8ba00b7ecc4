"""Faults of the files of sealed folders: each function says in words how a file differs from its manifest, if it does.

Artifacts and the cache hold their files against these, whichever way each opens them, and raise errors of their own.
"""

from __future__ import annotations

import os
import stat


def fault_of_kind(found: os.stat_result) -> str:
    """The fault of what is no plain file: a folder, a link, a pipe; empty for a plain file."""
    return "" if stat.S_ISREG(found.st_mode) else "is not a plain file"


def fault_of_size(found: os.stat_result, size: int) -> str:
    """The fault of a file that has another size in bytes than the manifest says; empty where it has that size."""
    return "" if found.st_size == size else f"has {found.st_size} bytes instead of {size}"


def fault_of_digest(found: str, digest: str) -> str:
    """The fault of a file that does not match its digest in the manifest; empty where it has that digest."""
    return "" if found == digest else "does not match its digest in the manifest"
