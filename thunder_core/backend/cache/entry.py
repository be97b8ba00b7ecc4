"""A verified entry: only verified bytes are loaded."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from thunder_core.backend.cache.folders import reporting_full_disk
from thunder_core.backend.cache.key import Key


@dataclass(frozen=True, eq=False)
class Entry:
    """The files of a compiled kernel, as the bytes whose digests were verified.

    The content of a path in the store may change right after it was verified, because other processes drop, prune and
    build entries. A loader therefore gets a private copy, made from the verified bytes in a new folder that no other
    user can write to. The copy is removed when the process ends. A file in memory cannot replace the copy: its path
    contains a file descriptor that may be reused, and a loader returns the library that it first loaded from a path.
    """

    key: Key
    label: str
    contents: Mapping[str, bytes]

    def read(self, name: str) -> bytes:
        """Return the bytes of a file."""
        return self.contents[name]

    @cached_property
    def folder(self) -> Path:
        """The folder of a private copy of the whole entry, made at the first access."""
        folder = Path(tempfile.gettempdir())
        with reporting_full_disk(folder):
            folder = Path(tempfile.mkdtemp(prefix=f"thunder-{self.key.digest[:12]}-"))
            atexit.register(_remove, folder, os.getpid())
            for name, content in self.contents.items():
                (folder / name).write_bytes(content)
        return folder

    @property
    def files(self) -> dict[str, Path]:
        """The path of each file in the private copy, by name."""
        return {name: self.folder / name for name in self.contents}


def _remove(folder: Path, process: int) -> None:
    """Remove a private copy, unless this process is a fork of the process that made the copy."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
