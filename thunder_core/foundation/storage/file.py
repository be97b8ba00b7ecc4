"""Files that are replaced atomically: a file is written next to its final place and then renamed."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LONGEST_SUFFIX = 32  # bytes; temporary names have no longer suffix, because a name has at most 255 bytes


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; its file becomes `path` if the block ends, and is removed if it raises.

    If `path` is a symbolic link, the file that it refers to is replaced. A device or a pipe is written to directly.
    Raises OSError.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        yield path
        return
    suffix = path.suffix if len(path.suffix) <= LONGEST_SUFFIX else ""
    new = path.with_name(f".new-{os.getpid()}-{secrets.token_hex(4)}{suffix}")
    try:
        yield new
        if path.exists():
            shutil.copymode(path, new)
        new.replace(path)
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)


def write_atomically(path: Path, text: str) -> None:
    """Write a text in UTF-8 to a file, which replaces an existing file atomically; raise OSError if that fails."""
    with replaced_file(path) as new:
        new.write_text(text, encoding="utf-8")
