"""The store: entries by their keys, shared by all processes of a user."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

from thunder_core.backend.cache.build import (
    SHARED,
    Build,
    build_alone,
    build_entry,
    clean_up,
    drop_entry,
    entry_lock,
    unfinished_folders,
)
from thunder_core.backend.cache.entry import Entry
from thunder_core.backend.cache.explanation import Why, explain
from thunder_core.backend.cache.key import Key
from thunder_core.backend.cache.manifest import Damage
from thunder_core.backend.cache.place import ENTRIES, cache_folder, opened_entries
from thunder_core.backend.cache.prune import Freed, choose_removed
from thunder_core.backend.cache.read import read_entry
from thunder_core.backend.cache.record import Record, mark_used, read_records
from thunder_core.foundation.errors import CacheNotUsable
from thunder_core.foundation.storage.absolute import absolute
from thunder_core.foundation.storage.full_disk import fullness

LOGGER = logging.getLogger("thunder_core.cache")
PATIENCE = 600.0  # seconds; longer than any one kernel takes to compile


class Store:
    """A folder of compiled kernels (default: `kernels` in the cache folder), safe with many processes at once.

    >>> import tempfile
    >>> store = Store(tempfile.mkdtemp())
    >>> key = Key("example", {"region": "f00d", "compiler": "g++ 13.1"})
    >>> def build(folder):
    ...     (folder / "kernel.so").write_bytes(b"machine code")
    >>> store.get_or_build(key, build, label="layer 0").read("kernel.so")
    b'machine code'
    >>> store.get(key).files["kernel.so"].read_bytes()  # a path for a loader
    b'machine code'

    An entry is verified whole before anything of it is returned; a damaged one is dropped and built again. `counts`
    has the `hits`, `misses` and `dropped` of this object. A store that cannot be written, or whose disk is full, can
    still be read: what is then compiled is used and not kept, which the log says.
    """

    def __init__(self, folder: str | Path | None = None, *, patience: float = PATIENCE) -> None:
        """Use the store in this folder, which need not be there yet; wait at most `patience` seconds for others."""
        self.folder = cache_folder() / "kernels" if folder is None else absolute(folder)
        self.patience = patience
        self.counts: Counter[str] = Counter()

    def get(self, key: Key) -> Entry | None:
        """The entry for a key, verified; None where there is none, or where it was damaged and has been dropped.

        Raises `CacheNotUsable` where others than the user can write to the store.
        """
        entry, _ = self._sound(key)
        self.counts["hits" if entry else "misses"] += 1
        return entry

    def get_or_build(self, key: Key, build: Build, label: str = "") -> Entry:
        """The entry for a key, built if there is none, by one of the processes that want it.

        `build(folder)` writes plain files into an empty folder. The entry appears as a whole when it returns; if it
        raises, or the process is killed, nothing appears. `label` says to people what the kernel is for.
        Raises `OutOfDisk` where the disk is full, and that of temporary files too, and whatever `build` raises.
        """
        entry, first = self._sound(key)
        if entry is None:
            with entry_lock(self.folder, key.digest, self.patience) as hindrance:
                entry, second = self._sound(key)  # another process may have built it while we waited
                if entry is None:
                    self.counts["misses"] += 1
                    return self._built(key, build, label, first or second, hindrance)
        self.counts["hits"] += 1
        return entry

    def entries(self) -> list[Record]:
        """The entries of the store, the latest used first; files are not read, so damage may go unnoticed."""
        return sorted(read_records(self.folder), key=lambda record: record.used, reverse=True)

    def verify(self) -> list[Record]:
        """Every entry, after every file was read; those whose `damage` says something have been dropped."""
        records = [self._verified(record) for record in self.entries()]
        self._remove([record for record in records if record.damage])
        return records

    def prune(self, *, max_bytes: int | None = None, max_age: timedelta | None = None, dry_run: bool = False) -> Freed:
        """Remove what was not used for longer than an age, then what was used least recently until the rest fits.

        Damaged entries go first, and what killed processes left is cleaned up. With `dry_run` nothing is removed.
        """
        return self._freed(choose_removed(self.entries(), max_bytes, max_age), dry_run=dry_run)

    def clear(self, *, model: str | None = None, dry_run: bool = False) -> Freed:
        """Remove all entries, or the entries that were built for a model, and what killed processes left.

        With `dry_run` nothing is removed.
        """
        records = self.entries()
        removed = tuple(record for record in records if model in (None, record.model))
        kept = tuple(record for record in records if model not in (None, record.model))
        return self._freed(Freed(removed, kept), dry_run=dry_run)

    def why(self, key: Key, label: str = "") -> Why:
        """Explain which field of a key made it miss: how it differs from the nearest entry that was there before."""
        records = self.entries()
        own = next((record for record in records if record.digest == key.digest and not record.damage), None)
        asked = Why(
            digest=key.digest,
            executor=key.executor,
            label=label or (own.label if own else ""),
            kept=own is not None,
            replaced=own.replaced if own else "",
        )
        return explain(asked, key.fields, [one for one in records if own is None or one.created < own.created])

    def _sound(self, key: Key) -> tuple[Entry | None, str]:
        """The entry if it is sound, and what was wrong with it if it was not."""
        try:
            with opened_entries(self.folder) as entries:
                entry = read_entry(entries, key.digest)
        except OSError:  # not there, or not to be read: the same for whoever wants a kernel
            return None, ""
        except Damage as damage:
            self.counts["dropped"] += 1
            LOGGER.warning("the entry %s is damaged and was removed: %s", key.digest[:12], damage)
            drop_entry(self.folder, key.digest)
            return None, str(damage)
        mark_used(self.folder / ENTRIES / key.digest)
        return entry, ""

    def _built(self, key: Key, build: Build, label: str, replaced: str, hindrance: str) -> Entry:
        if not hindrance:
            try:
                return build_entry(self.folder, key, build, label, replaced)
            except OSError as error:
                full = fullness(error)
                if full is None:
                    raise
                hindrance = full.what
        LOGGER.warning("compiled code is not cached in %s: %s", self.folder, hindrance)
        return build_alone(key, build, label)

    def _verified(self, record: Record) -> Record:
        if record.damage:
            return record
        try:
            with opened_entries(self.folder) as entries:
                read_entry(entries, record.digest)
        except FileNotFoundError:
            return record  # another process has dropped it
        except Damage as damage:
            return record.model_copy(update={"damage": str(damage)})
        return record

    def _freed(self, freed: Freed, *, dry_run: bool) -> Freed:
        if not dry_run:
            self._remove(freed.removed)
            self._clean_up()
        return freed

    def _remove(self, records: Sequence[Record]) -> None:
        """Remove entries; raises `CacheNotUsable` where one cannot be removed."""
        staying = [record for record in records if not drop_entry(self.folder, record.digest)]
        if staying:
            raise CacheNotUsable(
                f"{len(staying)} of {len(records)} entries cannot be removed from the cache folder {self.folder}",
                fix="check the owner and the permissions of these entries",
            )

    def _clean_up(self) -> None:
        """Remove what killed processes left: it is under a lock that nobody holds."""
        for digest in {path.name[:SHARED]: path.name for path in unfinished_folders(self.folder)}.values():
            with entry_lock(self.folder, digest, 0.0) as hindrance:
                if not hindrance:
                    clean_up(self.folder, digest)
