"""Folders that are there whole or not at all: written beside their place, and put into it in one step.

A folder that is being written is locked, and the system unlocks it when its process ends, however that ends. So what
was left is told from what is being written, by whichever process and in whichever container of the machine.
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

AT_FDCWD, RENAME_EXCHANGE = -100, 2  # of Linux: linux/fcntl.h and linux/fs.h
HOST = hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
LEFT_BEHIND = re.compile(r"\.(?P<name>.+)\.(?P<host>[0-9a-f]{8})-\d+-[0-9a-f]{8}\.(?P<kind>new|old)")

RequireFree = Callable[[Path], None]


@contextmanager
def replaced_folder(folder: Path, require_free: RequireFree) -> Iterator[Path]:
    """A new folder beside `folder` to write into; it becomes `folder` if the block ends, and vanishes if it does not.

    A folder that is there is replaced as a whole, at the end, unless `require_free` raises for it then, and again when
    it has been moved away and nobody can put anything into it by its name. Where `folder` is a link, what it leads to
    is replaced. Whatever is raised inside passes on, and nothing is left of it.
    """
    folder = folder.resolve() if folder.is_symlink() and folder.exists() else folder
    made = make_parents(folder)
    clean_up(folder)
    try:
        with locked_folder(folder) as new:
            yield new
            sync_files(new)
            require_free(folder)
            replace_folder(new, folder, require_free)
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


@contextmanager
def locked_folder(folder: Path) -> Iterator[Path]:
    """A new folder beside `folder`, locked for the block; removed after it if it was not given another name."""
    while True:
        with fresh_folder(temporary_name(folder, "new")) as new, opened_folder(new) as descriptor:
            if descriptor is not None and hold(descriptor) and is_at(descriptor, new):
                yield new
                return
        # Somebody took it for left behind before it was locked.


@contextmanager
def opened_folder(folder: Path) -> Iterator[int | None]:
    """The descriptor of a folder for the block; None where there is none, or a link."""
    descriptor: int | None = None
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def hold(descriptor: int) -> bool:
    """Lock an open folder, as soon as nobody else does; true, also where the system cannot: nobody cleans up there."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return True


def is_left_behind(descriptor: int) -> bool:
    """Whether nobody holds an open folder, which is locked then; false where the system cannot tell."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_at(descriptor: int, path: Path) -> bool:
    """Whether an open folder is still found under its name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.lstat())
    except OSError:
        return False


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
    """Remove what processes that ended left beside the folder, and put back what one had moved away."""
    for path in sorted(folder.parent.iterdir()):
        match = LEFT_BEHIND.fullmatch(path.name)
        if match is None or match["name"] != folder.name or match["host"] != HOST:
            continue
        with opened_folder(path) as descriptor:
            if descriptor is not None and is_left_behind(descriptor) and is_at(descriptor, path):
                put_back_or_remove(path, folder if match["kind"] == "old" else None)


def put_back_or_remove(left: Path, folder: Path | None) -> None:
    """Give a folder that was left behind the name that it had, if that is free; else remove it."""
    if folder is not None and not folder.exists():
        with suppress(OSError):  # another process was faster
            left.rename(folder)
    else:
        shutil.rmtree(left, ignore_errors=True)


def replace_folder(new: Path, folder: Path, require_free: RequireFree) -> None:
    """Put a new folder in the place of an old one, if there is one; if that fails the old one stays.

    The old one is locked until it is gone or back in its place, so that nobody takes it for left behind.
    """
    if not folder.exists():
        new.rename(folder)
        sync_folder(folder.parent)
        return
    with held_folder(folder):
        if exchange_names(new, folder):
            with undone_by(lambda: exchange_names(new, folder)):
                require_free(new)
            sync_folder(folder.parent)
            remove(new)
        else:
            rename_both(new, folder, require_free)


@contextmanager
def held_folder(folder: Path) -> Iterator[None]:
    """A folder that is there, locked for the block; where others put another in its place meanwhile, that one is."""
    while True:
        with opened_folder(folder) as descriptor:
            if descriptor is None or (hold(descriptor) and is_at(descriptor, folder)):
                yield
                return


def rename_both(new: Path, folder: Path, require_free: RequireFree) -> None:
    """Move the old folder away and the new one into its place, where the system cannot exchange them."""
    old = temporary_name(folder, "old")
    folder.rename(old)
    with undone_by(lambda: old.rename(folder)):
        require_free(old)
        new.rename(folder)
    sync_folder(folder.parent)
    remove(old)


@contextmanager
def undone_by(undo: Callable[[], object]) -> Iterator[None]:
    """Undo what was done before the block, if the block raises."""
    try:
        yield
    except BaseException:
        undo()
        raise


def exchange_names(one: Path, other: Path) -> bool:
    """Swap two names in one step, so that at no moment neither is there; False where the system cannot."""
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):
        return False
    here = ctypes.c_int(AT_FDCWD)
    status: int = library.renameat2(here, os.fsencode(one), here, os.fsencode(other), ctypes.c_uint(RENAME_EXCHANGE))
    return status == 0


def sync_files(folder: Path) -> None:
    """Have everything below a folder on the disk before it gets its name; links are not followed."""
    for place, _, files in os.walk(folder, topdown=False):
        for path in (Path(place) / name for name in files):
            if stat.S_ISREG(path.lstat().st_mode):  # others cannot be synchronized, and pipes would be waited for
                with path.open("rb") as file:
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
