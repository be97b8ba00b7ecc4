"""Read and verify cache entries.

Folders are opened by descriptor, and links are not followed. Sizes are checked before contents are read, and digests
are checked before contents are returned.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from thunder_core.backend.cache.entry import Entry
from thunder_core.backend.cache.folders import names_in, open_folder
from thunder_core.backend.cache.manifest import Damage, EntryManifest, manifest_of
from thunder_core.foundation.storage.digest import digest_of
from thunder_core.foundation.storage.manifest import MANIFEST, FileFacts
from thunder_core.foundation.storage.ownership import fault_of
from thunder_core.foundation.storage.sealed_file import fault_of_digest, fault_of_kind, fault_of_size

MAX_MANIFEST = 4 << 20  # bytes
TRANSIENT_ERRORS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR})  # no sign of damage
PLAIN_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe in place of a file must not block


def read_entry(entries: int, digest: str) -> Entry:
    """Return the verified entry for the key with this digest.

    Raises FileNotFoundError if there is none, `Damage` if the entry fails a check or cannot be read, and OSError if
    this process lacks memory or descriptors.
    """
    with _opened_entry(entries, digest) as folder, _unreadable_is_damage():
        manifest = _manifest(folder, digest)
        require_exact_files(folder, manifest)
        contents = {name: _content(folder, name, facts) for name, facts in manifest.files.items()}
        return Entry(manifest.key, manifest.label, contents)


def read_manifest(entries: int, digest: str) -> tuple[EntryManifest, os.stat_result]:
    """Return the manifest of an entry and its file status; raise the errors of `read_entry`."""
    with _opened_entry(entries, digest) as folder, _unreadable_is_damage():
        return _manifest(folder, digest), os.stat(MANIFEST, dir_fd=folder, follow_symlinks=False)


def require_exact_files(folder: int, manifest: EntryManifest) -> None:
    """Raise `Damage` unless a folder contains exactly the manifest and the manifest's files, with the right sizes."""
    present, expected = set(names_in(folder)), {MANIFEST, *manifest.files}
    if missing := expected - present:
        raise Damage(f"{min(missing)!r} is missing")
    if extra := present - expected:
        raise Damage(f"{min(extra)!r} does not belong to the entry")
    for name, facts in manifest.files.items():
        require_plain(name, os.stat(name, dir_fd=folder, follow_symlinks=False), facts.size)


def require_plain(name: str, status: os.stat_result, size: int) -> None:
    """Raise `Damage` unless the status is of a regular file of this size without other hard links."""
    linked = "" if status.st_nlink <= 1 else "is linked from elsewhere"  # 0: another process has removed the file
    if fault := fault_of_kind(status) or linked or fault_of_size(status, size):
        raise Damage(f"{name!r} {fault}")


def require_in_place(entries: int, digest: str, folder: int) -> None:
    """Raise FileNotFoundError if another process has removed the entry, so that the open folder is not the entry's."""
    if not os.path.samestat(os.stat(digest, dir_fd=entries, follow_symlinks=False), os.fstat(folder)):
        raise FileNotFoundError(digest)


def _manifest(folder: int, digest: str) -> EntryManifest:
    status = os.stat(MANIFEST, dir_fd=folder, follow_symlinks=False)
    if status.st_size > MAX_MANIFEST:
        raise Damage(f"{MANIFEST} has {status.st_size} bytes, which is too large for a manifest")
    return manifest_of(_read(folder, MANIFEST, status.st_size), digest)


def _content(folder: int, name: str, facts: FileFacts) -> bytes:
    content = _read(folder, name, facts.size)
    if fault := fault_of_digest(digest_of(content), facts.digest):
        raise Damage(f"{name!r} {fault}")
    return content


def _read(folder: int, name: str, size: int) -> bytes:
    with os.fdopen(os.open(name, PLAIN_FILE_FLAGS, dir_fd=folder), "rb") as file:
        require_plain(name, os.fstat(file.fileno()), size)
        return file.read(size)


@contextmanager
def _opened_entry(entries: int, digest: str) -> Iterator[int]:
    """Yield a descriptor of an entry's folder.

    Raises `Damage` if the folder cannot be opened, belongs to another user, or can be written to by other users, and
    FileNotFoundError if another process removes the entry within the block.
    """
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(open_folder(digest, inside=entries))
        except OSError as error:
            if isinstance(error, FileNotFoundError) or error.errno in TRANSIENT_ERRORS:
                raise
            raise Damage(f"the entry's folder cannot be opened: {error.strerror or error}") from error
        try:
            if fault := fault_of(os.fstat(folder)):
                raise Damage(f"the entry's folder {fault}")
            yield folder
        except Damage:
            require_in_place(entries, digest, folder)
            raise


@contextmanager
def _unreadable_is_damage() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in TRANSIENT_ERRORS:
            raise
        raise Damage(f"the entry cannot be read: {error.strerror or error}") from error
