"""Count and remove the stored results of searches."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from thunder_core.backend.cache.folders import cache_folder

FOLDER = "searches"


@dataclass(frozen=True)
class StoredSearches:
    """The number of searches whose results are stored, the number of results, and their size in bytes."""

    searches: int
    trials: int
    size: int


def searches_folder() -> Path:
    """Return the folder, which contains a folder for each search. It may not exist."""
    return cache_folder() / FOLDER


def count_stored_searches() -> StoredSearches:
    """Return the number and the size of the searches in the folder."""
    files = [file for file in searches_folder().glob("*/*.json") if file.is_file()]
    return StoredSearches(len({file.parent for file in files}), len(files), sum(file.stat().st_size for file in files))


def remove_searches() -> StoredSearches:
    """Remove the folder, and return the number and the size of the searches that it contained."""
    searches = count_stored_searches()
    shutil.rmtree(searches_folder(), ignore_errors=True)
    return searches
