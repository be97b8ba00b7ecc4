"""Records of entries whose files are not read: for lists, for pruning, and to say why something was built."""

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

from thunder_core.backend.cache.manifest import Damage, EntryManifest
from thunder_core.backend.cache.place import ENTRIES, VARIABLE, names_in, opened_entries
from thunder_core.backend.cache.read import read_manifest
from thunder_core.foundation.errors import CacheNotUsable
from thunder_core.foundation.storage.manifest import MANIFEST, StoredFacts

DIGEST = re.compile(r"[0-9a-f]{64}")
LAST = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


class Record(StoredFacts):
    """One entry as a list shows it.

    `size` is in bytes; `replaced` says what was wrong with the entry that it replaced, `damage` what is wrong with
    itself, in which case nothing of its manifest is believed.
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
    """The entries that were built for one model: their number, their bytes, and when one of them was last used."""

    model: str
    entries: int
    size: int
    used: AwareDatetime


def by_models(records: Iterable[Record]) -> list[ModelRecord]:
    """A record for each model that entries were built for, the largest first; "" names entries without a model."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.model, []).append(record)
    found = [
        ModelRecord(
            model=model,
            entries=len(own),
            size=sum(record.size for record in own),
            used=max(record.used for record in own),
        )
        for model, own in groups.items()
    ]
    return sorted(found, key=lambda one: -one.size)


def read_records(root: Path) -> Iterator[Record]:
    """Every entry of a store, in the order of their digests."""
    try:
        with opened_entries(root) as entries:
            for digest in sorted(filter(DIGEST.fullmatch, names_in(entries))):  # anything else is somebody's
                yield from _record(root, entries, digest)
    except FileNotFoundError:
        return
    except OSError as error:
        raise CacheNotUsable(
            f"the cache folder {root} cannot be read: {error.strerror or error}",
            fix=f"set {VARIABLE} to another folder",
        ) from error


def _record(root: Path, entries: int, digest: str) -> Iterator[Record]:
    try:
        manifest, found = read_manifest(entries, digest)
    except FileNotFoundError:
        return  # another process has dropped it
    except Damage as damage:
        with suppress(FileNotFoundError):
            yield _damaged_record(root / ENTRIES / digest, str(damage))
    else:
        yield _sound_record(digest, manifest, found)


def _sound_record(digest: str, manifest: EntryManifest, found: os.stat_result) -> Record:
    return Record(
        digest=digest,
        executor=manifest.executor,
        label=manifest.label,
        model=manifest.model,
        fields=manifest.fields,
        size=manifest.size + found.st_size,
        files=len(manifest.files),
        created=manifest.created,
        used=_moment(found.st_mtime),
        replaced=manifest.replaced,
    )


def _damaged_record(place: Path, damage: str) -> Record:
    """The record of an entry of which nothing can be believed but what the file system says."""
    files = _files_in(place)
    changed = _moment(place.lstat().st_mtime)
    return Record(
        digest=place.name,
        size=sum(files.values()),
        files=len(files.keys() - {MANIFEST}),
        created=changed,
        used=changed,
        damage=damage,
    )


def _files_in(place: Path) -> dict[str, int]:
    """The sizes of the plain files in a folder, or none where it is not a folder that can be read."""
    try:
        found = [] if place.is_symlink() else [(path.name, path.lstat()) for path in place.iterdir()]
    except OSError:
        return {}
    return {name: one.st_size for name, one in found if stat.S_ISREG(one.st_mode)}


def mark_used(entry: Path) -> None:
    """Note that an entry was used now, in its manifest's time of change; a store that cannot be written is left."""
    now = time.time_ns()  # the file system's own clock ticks too slowly to tell what was used first
    with suppress(OSError):
        os.utime(entry / MANIFEST, ns=(now, now), follow_symlinks=False)


def _moment(seconds: float) -> datetime:
    """A time of the file system, which may hold some that no calendar has."""
    return datetime.fromtimestamp(min(max(seconds, 0.0), LAST), UTC)
