"""Absolute paths for messages, without `~` and without `..`."""

from __future__ import annotations

import os
from pathlib import Path


def absolute(path: Path | str) -> Path:
    """Return the absolute form of a path, without following a symbolic link in its last part."""
    absolute_path = Path(path).expanduser().absolute()
    if ".." not in absolute_path.parts:
        return absolute_path
    if absolute_path.name == "..":
        return Path(os.path.realpath(absolute_path))
    return Path(os.path.realpath(absolute_path.parent)) / absolute_path.name
