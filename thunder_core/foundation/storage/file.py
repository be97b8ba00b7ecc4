"""Files that are there whole or as they were: written beside their place, and put into it in one step."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LONGEST_SUFFIX = 32  # that a name for writing keeps: names have at most 255 bytes


@contextmanager
def replaced_file(path: Path) -> Iterator[Path]:
    """A name beside `path` to write a file to; the file becomes `path` if the block ends, and vanishes if it does not.

    Where `path` is a link, what it leads to is replaced; a device or a pipe is written to as it is. Raises OSError.
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


def write_whole(path: Path, text: str) -> None:
    """Write a text in UTF-8 in the place of the file that was there, if there was one; raises OSError."""
    with replaced_file(path) as new:
        new.write_text(text, encoding="utf-8")
