"""The location of the cache: its owner, and its folders."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import platformdirs

from thunder_core.foundation.errors import CacheNotUsable
from thunder_core.foundation.storage.absolute import absolute
from thunder_core.foundation.storage.full_disk import report_full_disk
from thunder_core.foundation.storage.ownership import fault_of

CACHE_VARIABLE = "THUNDER_CACHE_DIR"
NOT_A_FOLDER_ERRORS = frozenset({errno.ENOTDIR, errno.ELOOP})  # the error for a link depends on the system
ENTRIES, LOCKS, BUILDING = "entries", "locks", "building"


def cache_folder() -> Path:
    """Return the folder of all caches of Thunder: `THUNDER_CACHE_DIR`, or the platform's folder for user caches."""
    named = os.environ.get(CACHE_VARIABLE)
    return absolute(named) if named else platformdirs.user_cache_path("thunder")


def make_folders(root: Path) -> None:
    """Create the folders of a store if they do not exist, accessible only to the user."""
    for folder in (root, root / ENTRIES, root / LOCKS, root / BUILDING):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)


@contextmanager
def open_folder(folder: Path | str, *, inside: int | None = None) -> Iterator[int]:
    """Yield a descriptor of a folder; links are not followed inside another descriptor's folder."""
    flags = os.O_RDONLY | os.O_DIRECTORY | (0 if inside is None else os.O_NOFOLLOW)
    descriptor = os.open(folder, flags, dir_fd=inside)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def open_entries(root: Path) -> Iterator[int]:
    """Yield a descriptor of the folder of entries; raise `CacheNotUsable` if other users can write to it."""
    with ExitStack() as stack:
        store = stack.enter_context(open_folder(root))
        require_own(root, store)
        try:
            entries = stack.enter_context(open_folder(ENTRIES, inside=store))
        except OSError as error:
            if error.errno not in NOT_A_FOLDER_ERRORS:
                raise
            raise CacheNotUsable(
                f"{root / ENTRIES} is a file or a link, not a folder", fix=f"remove {root / ENTRIES}"
            ) from error
        require_own(root / ENTRIES, entries)
        yield entries


def names_in(folder: int) -> list[str]:
    """Return the names in the folder of a descriptor."""
    return os.listdir(folder)


def require_own(folder: Path, descriptor: int) -> None:
    """Raise `CacheNotUsable` for a folder that other users can write to."""
    if fault := fault_of(os.fstat(descriptor)):
        raise CacheNotUsable(
            f"the cache folder {folder} {fault}, so its contents cannot be trusted",
            fix=f"run `chmod 700 {folder}` if the folder is yours, or set {CACHE_VARIABLE} to another folder",
        )


def reporting_full_disk(folder: Path) -> AbstractContextManager[None]:
    """Return a context that raises `OutOfDisk` if the file system is full."""
    return report_full_disk(f"nothing was written to {folder}", advice="; `thunder cache prune` frees space")
