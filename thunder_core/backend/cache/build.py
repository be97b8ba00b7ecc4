"""Building an entry: in a folder of its own, which becomes the entry by one rename or is never seen."""

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
from thunder_core.backend.cache.key import SCHEMA_VERSION, Key
from thunder_core.backend.cache.manifest import EntryManifest
from thunder_core.backend.cache.place import BUILDING, ENTRIES, LOCKS, full_disk_named, make_folders
from thunder_core.backend.cache.record import mark_used
from thunder_core.foundation.printable import printable
from thunder_core.foundation.storage.folder import fresh_folder, remove
from thunder_core.foundation.storage.manifest import MANIFEST, facts_of_content

LOGGER = logging.getLogger("thunder_core.cache")
Build = Callable[[Path], None]
ONCE = re.compile(r"[0-9a-f]{64}-[0-9a-f]{8}")
SHARED = 3  # digits of the digest that name a lock, so that there are never more than 4,096 of its files


@contextmanager
def entry_lock(root: Path, digest: str, patience: float) -> Iterator[str]:
    """Hold the lock of the entries that begin so while the block runs; yields what hinders that, empty where nothing.

    Who holds it is the only one that builds and cleans up such entries. A lock's file is never removed: that would
    part those who wait for it from those who come later.
    """
    try:
        make_folders(root)
        lock = FileLock(root / LOCKS / f"{digest[:SHARED]}.lock")
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
    """Build an entry and put it into the store, whose lock is held; whatever `build` raises passes on."""
    clean_up(root, key.digest)
    with fresh_folder(root / BUILDING / _once(key.digest), mode=0o700) as folder:
        build(folder)
        contents = built_files(folder)
        manifest = manifest_for(key, label, replaced, contents)
        (folder / MANIFEST).write_bytes(manifest.to_bytes())
        mark_used(folder)
        _publish(folder, root / ENTRIES / key.digest)
    return Entry(key, label, contents)


def build_alone(key: Key, build: Build, label: str) -> Entry:
    """Build an entry in a folder outside the store, which does not get it; raises `OutOfDisk`."""
    with full_disk_named(Path(tempfile.gettempdir())), tempfile.TemporaryDirectory(prefix="thunder-") as folder:
        build(Path(folder))
        return Entry(key, label, built_files(Path(folder)))


def built_files(folder: Path) -> dict[str, bytes]:
    """The files that a build wrote: plain ones beside each other, each with no other name and for the user alone."""
    contents = {}
    for path in sorted(folder.iterdir()):
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or path.name == MANIFEST:
            raise ValueError(f"a build may write only plain files into one folder, but it wrote {path.name!r}")
        contents[path.name] = content = path.read_bytes()
        if found.st_nlink > 1:
            path.unlink()
            path.write_bytes(content)
        path.chmod(0o600)
    if not contents:
        raise ValueError("a build wrote no file")
    return contents


def manifest_for(key: Key, label: str, replaced: str, contents: dict[str, bytes]) -> EntryManifest:
    """The sealed manifest of these contents, made now."""
    return EntryManifest(
        schema_version=SCHEMA_VERSION,
        executor=key.executor,
        fields=dict(key.fields),
        label=label,
        model=printable(model_of_new_entries()),
        created=datetime.now(UTC),
        replaced=replaced,
        files={name: facts_of_content(content) for name, content in contents.items()},
    ).sealed()


def drop_entry(root: Path, digest: str) -> bool:
    """Remove an entry, first from sight and then from the disk; whether it is gone."""
    gone = root / BUILDING / _once(digest)
    try:
        make_folders(root)
        (root / ENTRIES / digest).rename(gone)
    except FileNotFoundError:
        return True
    except OSError as error:
        LOGGER.warning("%s cannot be removed from %s: %s", digest[:12], root, error)
        return False
    remove(gone)
    return True


def clean_up(root: Path, digest: str) -> None:
    """Remove what killed processes left of entries under the lock of this one, which is held."""
    for path in unfinished_folders(root):
        if path.name.startswith(digest[:SHARED]):
            remove(path)


def unfinished_folders(root: Path) -> Iterator[Path]:
    """The folders that are being built or removed, or were left by killed processes; others there are somebody's."""
    yield from (path for path in (root / BUILDING).glob("*") if ONCE.fullmatch(path.name))


def _publish(folder: Path, place: Path) -> None:
    """Give a finished folder its name; where something stands that could not be dropped, the entry is not kept."""
    try:
        folder.rename(place)
    except OSError as error:
        LOGGER.warning("the compiled code is not cached as %s: %s", place, error)


def _once(digest: str) -> str:
    return f"{digest}-{secrets.token_hex(4)}"
