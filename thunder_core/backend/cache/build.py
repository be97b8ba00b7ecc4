"""Build a cache entry in a temporary folder, and rename the folder to its final path when the entry is complete."""

from __future__ import annotations

import logging
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from filelock import FileLock, Timeout

from thunder_core.backend.cache.built_for import model_of_new_entries
from thunder_core.backend.cache.entry import Entry
from thunder_core.backend.cache.folders import BUILDING, ENTRIES, LOCKS, make_folders, reporting_full_disk
from thunder_core.backend.cache.key import SCHEMA_VERSION, Key
from thunder_core.backend.cache.manifest import EntryManifest
from thunder_core.backend.cache.record import mark_used
from thunder_core.foundation.printable import printable
from thunder_core.foundation.storage.folder import fresh_folder, remove
from thunder_core.foundation.storage.manifest import MANIFEST, facts_of_content

LOGGER = logging.getLogger("thunder_core.cache")
Build = Callable[[Path], None]  # writes the files of an entry into a folder
UNFINISHED_NAME = re.compile(r"[0-9a-f]{64}-[0-9a-f]{8}")
LOCK_DIGITS = 3  # digits of the digest that name a lock, which gives at most 4,096 lock files


@contextmanager
def entry_lock(root: Path, digest: str, patience: float) -> Iterator[str]:
    """Hold the lock of an entry within the block. Yield an empty string, or the reason why the lock cannot be held.

    Entries whose digests begin with the same digits share a lock. Only the process that holds the lock builds and
    cleans up these entries. The lock's file is never removed: otherwise processes that wait for the file and later
    processes would lock different files.
    """
    try:
        make_folders(root)
        lock = FileLock(root / LOCKS / f"{digest[:LOCK_DIGITS]}.lock")
        lock.acquire(timeout=patience)
    except Timeout:
        yield f"another process has been building for {patience:g} seconds"
        return
    except OSError as error:
        yield error.strerror or str(error)
        return
    try:
        yield ""
    finally:
        lock.release()


def build_entry(root: Path, key: Key, build: Build, label: str, replaced: str) -> Entry:
    """Build an entry and put it into the store. The caller holds the entry's lock; exceptions of `build` propagate.

    `replaced` describes the damage of an earlier entry with this key, which was removed; empty if there was none.
    """
    clean_up(root, key.digest)
    with fresh_folder(root / BUILDING / _unfinished_name(key.digest), mode=0o700) as folder:
        build(folder)
        contents = read_built_files(folder)
        manifest = manifest_for(key, label, replaced, contents)
        (folder / MANIFEST).write_bytes(manifest.to_bytes())
        mark_used(folder)
        _publish(folder, root / ENTRIES / key.digest)
    return Entry(key, label, contents)


def build_unstored(key: Key, build: Build, label: str) -> Entry:
    """Build an entry in a folder outside the store, without storing it; raises `OutOfDisk`."""
    with reporting_full_disk(Path(tempfile.gettempdir())), tempfile.TemporaryDirectory(prefix="thunder-") as folder:
        build(Path(folder))
        return Entry(key, label, read_built_files(Path(folder)))


def read_built_files(folder: Path) -> dict[str, bytes]:
    """Return the files that a build wrote into a folder, and make them private to the user, without hard links.

    Raises ValueError for a build that wrote no file, anything but regular files, or a file with the manifest's name.
    """
    contents = {}
    for path in sorted(folder.iterdir()):
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or path.name == MANIFEST:
            raise ValueError(
                f"a build may write only plain files into one folder, and none named {MANIFEST}, but it wrote "
                f"{path.name!r}"
            )
        contents[path.name] = content = path.read_bytes()
        if status.st_nlink > 1:
            path.unlink()
            path.write_bytes(content)
        path.chmod(0o600)
    if not contents:
        raise ValueError("a build wrote no file")
    return contents


def manifest_for(key: Key, label: str, replaced: str, contents: dict[str, bytes]) -> EntryManifest:
    """Return the sealed manifest of the contents, with the current time."""
    return EntryManifest(
        schema_version=SCHEMA_VERSION,
        executor=key.executor,
        fields=dict(key.fields),
        label=label,
        model=printable(model_of_new_entries()),
        created=datetime.now(UTC),
        replaced=replaced,
        files={name: facts_of_content(content) for name, content in contents.items()},
    ).with_own_digest()


def drop_entry(root: Path, digest: str) -> bool:
    """Remove an entry, first from the store and then from the disk; return whether it is gone."""
    removed_path = root / BUILDING / _unfinished_name(digest)
    try:
        make_folders(root)
        (root / ENTRIES / digest).rename(removed_path)
    except FileNotFoundError:
        return True
    except OSError as error:
        LOGGER.warning("%s cannot be removed from %s: %s", digest[:12], root, error)
        return False
    remove(removed_path)
    return True


def clean_up(root: Path, digest: str) -> None:
    """Remove unfinished folders, which killed processes have left, of entries with this digest's lock.

    The caller holds the lock.
    """
    for path in unfinished_folders(root):
        if path.name.startswith(digest[:LOCK_DIGITS]):
            remove(path)


def unfinished_folders(root: Path) -> Iterator[Path]:
    """Yield the folders of entries that are being built or removed, including folders that killed processes have left.

    Other files in the same folder are ignored.
    """
    yield from (path for path in (root / BUILDING).glob("*") if UNFINISHED_NAME.fullmatch(path.name))


def _publish(folder: Path, path: Path) -> None:
    """Rename a finished folder to its final path.

    If the path exists, because an earlier entry could not be dropped, the new entry is not stored.
    """
    try:
        folder.rename(path)
    except OSError as error:
        LOGGER.warning("the compiled code is not cached as %s: %s", path, error)


def _unfinished_name(digest: str) -> str:
    """Return a new name for the folder of an entry that is being built or removed."""
    return f"{digest}-{secrets.token_hex(4)}"
