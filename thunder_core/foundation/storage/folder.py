"""Folders that are replaced atomically: a folder is written next to its final place and then renamed.

A folder is locked while it is written, and the operating system unlocks it when the process ends for any reason.
Therefore, other processes, even in other containers of the machine, can distinguish a folder that is being written from
a folder that an ended process has left behind.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import re
import secrets
import shutil
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # constants of Linux: linux/fcntl.h and linux/fs.h
HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
LEFT_BEHIND = re.compile(r"\.(?P<name>.+)\.(?P<host>[0-9a-f]{8})-\d+-[0-9a-f]{8}\.(?P<kind>new|old)")

RequireFree = Callable[[Path], None]


@contextmanager
def replaced_folder(folder: Path, require_free: RequireFree) -> Iterator[Path]:
    """Yield a new folder next to `folder`; it becomes `folder` if the block ends, and is removed if the block raises.

    An existing folder is replaced as a whole at the end, unless `require_free(path)` raises an error for it.
    `require_free` is called twice: before the replacement, and again for the old folder after it was moved to another
    name, when no other process writes to it. If `folder` is a symbolic link, the folder that it refers to is replaced.
    Every exception of the block is raised again.
    """
    folder = folder.resolve() if folder.is_symlink() and folder.exists() else folder
    parents = make_parents(folder)
    clean_up(folder)
    try:
        with new_locked_folder(folder) as new:
            yield new
            sync_files(new)
            require_free(folder)
            replace_folder(new, folder, require_free)
    except BaseException:
        for parent in reversed(parents):
            _remove_if_empty(parent)
        raise


@contextmanager
def fresh_folder(folder: Path, mode: int = 0o777) -> Iterator[Path]:
    """Create a folder, and remove it after the block if it has not been renamed."""
    folder.mkdir(mode=mode)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def new_locked_folder(folder: Path) -> Iterator[Path]:
    """Create a folder next to `folder`, locked during the block, and remove it afterwards unless it was renamed."""
    while True:
        with fresh_folder(temporary_name(folder, "new")) as new, opened_folder(new) as descriptor:
            if descriptor is not None and wait_for_lock(descriptor) and is_at(descriptor, new):
                yield new
                return
        # Another process removed the folder as a leftover before it was locked.


@contextmanager
def opened_folder(folder: Path) -> Iterator[int | None]:
    """Yield a descriptor of a folder during the block; None if it does not exist or is a symbolic link."""
    descriptor: int | None = None
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def wait_for_lock(descriptor: int) -> bool:
    """Wait until an open folder is locked, and return True.

    The result is also True if the file system does not support locks: then no process removes folders there.
    """
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return True


def try_lock(descriptor: int) -> bool:
    """Lock an open folder without waiting, and return whether that succeeded.

    It succeeds for a folder that an ended process left behind. It does not succeed if the file system does not support
    locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open folder is still the folder at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False


def remove(path: Path) -> None:
    """Remove a folder with its contents, or a file; symbolic links are not followed."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def make_parents(folder: Path) -> list[Path]:
    """Create the missing parents of `folder`, and return them, outermost first."""
    missing = [parent for parent in reversed(folder.parents) if not parent.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    return missing


def temporary_name(folder: Path, kind: str) -> Path:
    """Return an unused path next to the folder. Its name includes the folder's name, the host and this process."""
    return folder.parent / f".{folder.name}.{HOST}-{os.getpid()}-{secrets.token_hex(4)}.{kind}"


def clean_up(folder: Path) -> None:
    """Remove temporary folders of ended processes next to the folder, and restore a folder that they had moved."""
    for path in sorted(folder.parent.iterdir()):
        match = LEFT_BEHIND.fullmatch(path.name)
        if match is None or match["name"] != folder.name or match["host"] != HOST:
            continue
        with opened_folder(path) as descriptor:
            if descriptor is not None and try_lock(descriptor) and is_at(descriptor, path):
                put_back_or_remove(path, folder if match["kind"] == "old" else None)


def put_back_or_remove(old: Path, folder: Path | None) -> None:
    """Move an old folder that an ended process left back to its name if this name is free; otherwise remove it."""
    if folder is not None and not folder.exists():
        with suppress(OSError):  # another process has already created or moved the folder
            old.rename(folder)
    else:
        shutil.rmtree(old, ignore_errors=True)


def replace_folder(new: Path, folder: Path, require_free: RequireFree) -> None:
    """Replace a folder by a new folder; if that fails, the old folder stays.

    The old folder is locked until it is removed or restored, so that no other process removes it as left behind.
    """
    if not folder.exists():
        new.rename(folder)
        sync_folder(folder.parent)
        return
    with lock_existing_folder(folder):
        if exchange_names(new, folder):
            with undo_on_error(lambda: exchange_names(new, folder)):
                require_free(new)
            sync_folder(folder.parent)
            remove(new)
        else:
            rename_both(new, folder, require_free)


@contextmanager
def lock_existing_folder(folder: Path) -> Iterator[None]:
    """Lock an existing folder during the block. If another process has just replaced it, lock the new folder."""
    while True:
        with opened_folder(folder) as descriptor:
            if descriptor is None or (wait_for_lock(descriptor) and is_at(descriptor, folder)):
                yield
                return


def rename_both(new: Path, folder: Path, require_free: RequireFree) -> None:
    """Rename the old folder, and then give its name to the new folder, on systems that cannot exchange two names."""
    old = temporary_name(folder, "old")
    folder.rename(old)
    with undo_on_error(lambda: old.rename(folder)):
        require_free(old)
        new.rename(folder)
    sync_folder(folder.parent)
    remove(old)


@contextmanager
def undo_on_error(undo: Callable[[], object]) -> Iterator[None]:
    """Call `undo` if the block raises."""
    try:
        yield
    except BaseException:
        undo()
        raise


def exchange_names(first: Path, second: Path) -> bool:
    """Exchange two names in one step, so that both exist at every moment; return False if the system cannot."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        return False
    here = ctypes.c_int(AT_FDCWD)
    status: int = library.renameat2(here, os.fsencode(first), here, os.fsencode(second), ctypes.c_uint(RENAME_EXCHANGE))
    return status == 0


def sync_files(folder: Path) -> None:
    """Synchronize all files below a folder with the disk, without following symbolic links."""
    for directory, _, files in os.walk(folder, topdown=False):
        for path in (Path(directory) / name for name in files):
            if stat.S_ISREG(path.lstat().st_mode):  # other kinds cannot be synchronized, and opening a pipe would block
                with path.open("rb") as file:
                    os.fsync(file.fileno())
        sync_folder(Path(directory))


def sync_folder(folder: Path) -> None:
    """Synchronize the names in a folder with the disk."""
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
