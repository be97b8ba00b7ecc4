"""An entry that was verified: what is loaded of it is what was verified."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from thunder_core.backend.cache.key import Key
from thunder_core.backend.cache.place import full_disk_named


@dataclass(frozen=True, eq=False)
class Entry:
    """The files of a compiled kernel, as the very bytes whose digests were compared.

    A path in the store may lead to something else a moment after it was verified: another process drops, prunes and
    builds. What is given to a loader is therefore a private copy of this process, made from these bytes, in a new
    folder that nobody else can write to. (A memory file would be reached by a number that is used again, and loaders
    take a name that they have seen for the library that they have loaded.) The copy is removed when the process ends.
    """

    key: Key
    label: str
    contents: Mapping[str, bytes]

    def read(self, name: str) -> bytes:
        """The bytes of a file."""
        return self.contents[name]

    @cached_property
    def folder(self) -> Path:
        """A private copy of the whole entry, made when it is first asked for."""
        folder = Path(tempfile.gettempdir())
        with full_disk_named(folder):
            folder = Path(tempfile.mkdtemp(prefix=f"thunder-{self.key.digest[:12]}-"))
            atexit.register(_remove, folder, os.getpid())
            for name, content in self.contents.items():
                (folder / name).write_bytes(content)
        return folder

    @property
    def files(self) -> dict[str, Path]:
        """The path of each file in the private copy, by its name."""
        return {name: self.folder / name for name in self.contents}


def _remove(folder: Path, process: int) -> None:
    """Remove a private copy, unless this is a fork of the process whose copy it is."""
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
