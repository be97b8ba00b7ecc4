"""Absolute paths as messages show them: without `~` and without `..`."""

from __future__ import annotations

import os
from pathlib import Path


def absolute(path: Path | str) -> Path:
    """The absolute path of what `path` names; a symbolic link in its last part is not followed."""
    found = Path(path).expanduser().absolute()
    if ".." not in found.parts:
        return found
    if found.name == "..":
        return Path(os.path.realpath(found))
    return Path(os.path.realpath(found.parent)) / found.name
