"""Reading entries: by descriptors, without following a link, sizes before contents, and digests before use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from thunder_core.backend.cache.entry import Entry
from thunder_core.backend.cache.manifest import Damage, EntryManifest, manifest_of
from thunder_core.backend.cache.place import names_in, opened_folder
from thunder_core.foundation.storage.digest import digest_of
from thunder_core.foundation.storage.manifest import MANIFEST, FileFacts
from thunder_core.foundation.storage.ownership import fault_of
from thunder_core.foundation.storage.sealed_file import fault_of_digest, fault_of_kind, fault_of_size

MOST_MANIFEST = 4 << 20  # bytes
PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe in a file's place must not hold us up


def read_entry(entries: int, digest: str) -> Entry:
    """The entry with this digest in the folder of entries; FileNotFoundError where there is none, or `Damage`."""
    with _opened_entry(entries, digest) as folder, _unreadable_is_damage():
        manifest = _manifest(folder, digest)
        require_exactly(folder, manifest)
        contents = {name: _content(folder, name, facts) for name, facts in manifest.files.items()}
        return Entry(manifest.key, manifest.label, contents)


def read_manifest(entries: int, digest: str) -> tuple[EntryManifest, os.stat_result]:
    """The manifest of an entry and what the file system says of it; FileNotFoundError or `Damage`."""
    with _opened_entry(entries, digest) as folder, _unreadable_is_damage():
        return _manifest(folder, digest), os.stat(MANIFEST, dir_fd=folder, follow_symlinks=False)


def require_exactly(folder: int, manifest: EntryManifest) -> None:
    """Raise `Damage` unless a folder holds the manifest's files, each as large as it should be, and nothing else."""
    there, named = set(names_in(folder)), {MANIFEST, *manifest.files}
    if missing := named - there:
        raise Damage(f"{min(missing)!r} is missing")
    if more := there - named:
        raise Damage(f"{min(more)!r} does not belong to it")
    for name, facts in manifest.files.items():
        require_plain(name, os.stat(name, dir_fd=folder, follow_symlinks=False), facts.size)


def require_plain(name: str, found: os.stat_result, size: int) -> None:
    """Raise `Damage` unless this is a plain file of this size that has no other name."""
    linked = "" if found.st_nlink == 1 else "is linked from elsewhere"
    if fault := fault_of_kind(found) or linked or fault_of_size(found, size):
        raise Damage(f"{name!r} {fault}")


def require_in_place(entries: int, digest: str, folder: int) -> None:
    """Raise FileNotFoundError where a folder is no longer that of the entry: another process has removed it."""
    if not os.path.samestat(os.stat(digest, dir_fd=entries, follow_symlinks=False), os.fstat(folder)):
        raise FileNotFoundError(digest)


def _manifest(folder: int, digest: str) -> EntryManifest:
    found = os.stat(MANIFEST, dir_fd=folder, follow_symlinks=False)
    if found.st_size > MOST_MANIFEST:
        raise Damage(f"{MANIFEST} has {found.st_size} bytes, which is too large for a manifest")
    return manifest_of(_read(folder, MANIFEST, found.st_size), digest)


def _content(folder: int, name: str, facts: FileFacts) -> bytes:
    content = _read(folder, name, facts.size)
    if fault := fault_of_digest(digest_of(content), facts.digest):
        raise Damage(f"{name!r} {fault}")
    return content


def _read(folder: int, name: str, size: int) -> bytes:
    with os.fdopen(os.open(name, PLAIN, dir_fd=folder), "rb") as file:
        require_plain(name, os.fstat(file.fileno()), size)
        return file.read(size)


@contextmanager
def _opened_entry(entries: int, digest: str) -> Iterator[int]:
    """A descriptor of an entry's folder, which only its owner can write to."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(opened_folder(digest, inside=entries))
        except FileNotFoundError:
            raise
        except OSError as error:
            raise Damage(f"its folder cannot be opened: {error.strerror or error}") from error
        try:
            if fault := fault_of(os.fstat(folder)):
                raise Damage(f"its folder {fault}")
            yield folder
        except Damage:
            require_in_place(entries, digest, folder)
            raise


@contextmanager
def _unreadable_is_damage() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Damage(f"it cannot be read: {error.strerror or error}") from error
