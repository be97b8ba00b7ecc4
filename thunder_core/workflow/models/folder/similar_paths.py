"""Find the folders whose paths are most similar to a mistyped path."""

from __future__ import annotations

import difflib
from itertools import islice
from pathlib import Path

from thunder_core.foundation.similar_names import nearest

MAX_FOLDERS = 10_000  # folders that are compared
MAX_SUGGESTIONS = 3


def similar_paths(path: Path) -> list[Path]:
    """Return up to three existing folders whose paths are similar to the path of a missing folder."""
    root, *parts = path.parts if path.is_absolute() else (".", *path.parts)
    folders = [Path(root)]
    for part in parts:
        folders = [inner for folder in folders for inner in _similar_subfolders(folder, part)]
    return folders[:MAX_SUGGESTIONS] if folders != [Path(root)] else []


def similarity(left: Path, right: Path) -> float:
    """Return the similarity of two paths, from 0 to 1."""
    return difflib.SequenceMatcher(None, str(left).lower(), str(right).lower()).ratio()


def _similar_subfolders(folder: Path, name: str) -> list[Path]:
    """Return the subfolder with a name, or the subfolders with similar names."""
    if (folder / name).is_dir():
        return [folder / name]
    try:
        inner = [path.name for path in islice(folder.iterdir(), MAX_FOLDERS) if path.is_dir()]
    except OSError:
        return []
    return [folder / near for near in nearest(name, inner)]
