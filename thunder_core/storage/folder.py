"""Folders that are there whole or not at all: written beside their place, and put into it in one step."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux: linux/fcntl.h and linux/fs.h
HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
NEIGHBOUR = re.compile(r"\.(?P<name>.+)\.(?P<host>[0-9a-f]{8})-(?P<process>\d+)-[0-9a-f]{8}\.(?P<kind>new|old)")


@contextmanager
def replaced_folder(folder: Path, require_free: Callable[[], None]) -> Iterator[Path]:
    """A new folder beside `folder` to write into; it becomes `folder` if the block ends, and vanishes if it does not.

    A folder that is there is replaced as a whole, at the end, unless `require_free` raises for it then. Whatever is
    raised inside passes on, and nothing is left of it.
    """
    made = make_parents(folder)
    clean_up(folder)
    try:
        with fresh_folder(temporary_name(folder, "new")) as new:
            yield new
            sync_files(new)
            require_free()
            replace_folder(new, folder)
    except BaseException:
        for parent in reversed(made):
            _remove_if_empty(parent)
        raise


@contextmanager
def fresh_folder(folder: Path, mode: int = 0o777) -> Iterator[Path]:
    """A folder that is made, and removed after the block if it has not been given another name."""
    folder.mkdir(mode=mode)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def remove(path: Path) -> None:
    """Remove a folder with all that is in it, or whatever else is there; links are not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def make_parents(folder: Path) -> list[Path]:
    """Make the folders that lead to `folder`; those that were not there, outermost first."""
    missing = [parent for parent in reversed(folder.parents) if not parent.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    return missing


def temporary_name(folder: Path, kind: str) -> Path:
    """A free name beside the folder that says which process made it."""
    return folder.parent / f".{folder.name}.{HOST}-{os.getpid()}-{secrets.token_hex(4)}.{kind}"


def clean_up(folder: Path) -> None:
    """Remove what processes that died left beside the folder, and put back what one had moved away."""
    for path in sorted(folder.parent.iterdir()):
        match = NEIGHBOUR.fullmatch(path.name)
        if match is None or match["name"] != folder.name or match["host"] != HOST or is_alive(int(match["process"])):
            continue
        if match["kind"] == "old" and not folder.exists():
            path.rename(folder)
        else:
            shutil.rmtree(path, ignore_errors=True)


def is_alive(process: int) -> bool:
    """Whether a process of this machine runs."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def replace_folder(new: Path, folder: Path) -> None:
    """Put a new folder in the place of an old one, if there is one; if that fails the old one stays."""
    if folder.exists() and exchange_names(new, folder):
        sync_folder(folder.parent)
        shutil.rmtree(new, ignore_errors=True)  # which is the old one now
        return
    old = temporary_name(folder, "old") if folder.exists() else None
    if old is not None:
        folder.rename(old)
    try:
        new.rename(folder)
    except BaseException:
        if old is not None:
            old.rename(folder)
        raise
    sync_folder(folder.parent)
    if old is not None:
        shutil.rmtree(old, ignore_errors=True)


def exchange_names(one: Path, other: Path) -> bool:
    """Swap two names in one step, so that at no moment neither is there; False where the system cannot."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        return False
    here = ctypes.c_int(AT_FDCWD)
    status: int = library.renameat2(here, os.fsencode(one), here, os.fsencode(other), ctypes.c_uint(RENAME_EXCHANGE))
    return status == 0


def sync_files(folder: Path) -> None:
    """Have everything below a folder on the disk before it gets its name."""
    for place, _, files in os.walk(folder, topdown=False):
        for name in files:
            with (Path(place) / name).open("rb") as file:
                os.fsync(file.fileno())
        sync_folder(Path(place))


def sync_folder(folder: Path) -> None:
    """Have the names in a folder on the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return
