"""Records of entries whose files are not read: for listings, for pruning, and for explanations of cache misses."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import AwareDatetime, Field

from thunder_core.backend.cache.folders import CACHE_VARIABLE, ENTRIES, names_in, open_entries
from thunder_core.backend.cache.manifest import Damage, EntryManifest
from thunder_core.backend.cache.read import read_manifest
from thunder_core.foundation.errors import CacheNotUsable
from thunder_core.foundation.storage.manifest import MANIFEST, StoredFacts

DIGEST = re.compile(r"[0-9a-f]{64}")
LATEST_TIME = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


class Record(StoredFacts):
    """An entry as a listing shows it.

    `size` is in bytes. `replaced` describes the damage of an earlier entry that this entry replaced. `damage` describes
    the damage of this entry; the manifest of a damaged entry is not trusted.
    """

    digest: str
    executor: str = ""
    label: str = ""
    model: str = ""
    fields: dict[str, str] = Field(default_factory=dict)
    size: int
    files: int = 0
    created: AwareDatetime
    used: AwareDatetime
    replaced: str = ""
    damage: str = ""


class ModelRecord(StoredFacts):
    """The entries that were built for a model: their number, their bytes, and the time of the last use."""

    model: str
    entries: int
    size: int
    used: AwareDatetime


def by_models(records: Iterable[Record]) -> list[ModelRecord]:
    """Return a record for each model that entries were built for, largest first; `model` is "" for no model."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.model, []).append(record)
    groups_of_models = [
        ModelRecord(
            model=model,
            entries=len(own),
            size=sum(record.size for record in own),
            used=max(record.used for record in own),
        )
        for model, own in groups.items()
    ]
    return sorted(groups_of_models, key=lambda record: -record.size)


def read_records(root: Path) -> Iterator[Record]:
    """Yield the records of all entries of a store, in the order of their digests."""
    try:
        with open_entries(root) as entries:
            for digest in sorted(filter(DIGEST.fullmatch, names_in(entries))):  # other files are ignored
                yield from _record(root, entries, digest)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CacheNotUsable(
            f"the cache folder {root} cannot be read: {error.strerror or error}",
            fix=f"set {CACHE_VARIABLE} to another folder",
        ) from error


def _record(root: Path, entries: int, digest: str) -> Iterator[Record]:
    try:
        manifest, status = read_manifest(entries, digest)
    except FileNotFoundError:
        return  # another process has dropped it
    except Damage as damage:
        with suppress(FileNotFoundError):
            yield _damaged_record(root / ENTRIES / digest, str(damage))
    else:
        yield _sound_record(digest, manifest, status)


def _sound_record(digest: str, manifest: EntryManifest, status: os.stat_result) -> Record:
    return Record(
        digest=digest,
        executor=manifest.executor,
        label=manifest.label,
        model=manifest.model,
        fields=manifest.fields,
        size=manifest.size + status.st_size,
        files=len(manifest.files),
        created=manifest.created,
        used=_moment(status.st_mtime),
        replaced=manifest.replaced,
    )


def _damaged_record(folder: Path, damage: str) -> Record:
    """Return the record of a damaged entry, from file system metadata only."""
    files = _files_in(folder)
    changed = _moment(folder.lstat().st_mtime)
    return Record(
        digest=folder.name,
        size=sum(files.values()),
        files=len(files.keys() - {MANIFEST}),
        created=changed,
        used=changed,
        damage=damage,
    )


def _files_in(folder: Path) -> dict[str, int]:
    """Return the sizes of the regular files in a folder; empty if it is not a readable folder."""
    try:
        statuses = [] if folder.is_symlink() else [(path.name, path.lstat()) for path in folder.iterdir()]
    except OSError:
        return {}
    return {name: status.st_size for name, status in statuses if stat.S_ISREG(status.st_mode)}


def mark_used(entry: Path) -> None:
    """Record the time of use in the manifest's modification time; ignore a store that cannot be written."""
    now = time.time_ns()  # the file system's own clock is too coarse to order uses
    with suppress(OSError):
        os.utime(entry / MANIFEST, ns=(now, now), follow_symlinks=False)


def _moment(seconds: float) -> datetime:
    """Return a time of the file system as a date; times outside the calendar are clamped."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), LATEST_TIME), UTC)
