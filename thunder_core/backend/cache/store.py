"""The store: entries by their keys, shared by all processes of a user."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path

from thunder_core.backend.cache.build import (
    LOCK_DIGITS,
    Build,
    build_entry,
    build_unstored,
    clean_up,
    drop_entry,
    entry_lock,
    unfinished_folders,
)
from thunder_core.backend.cache.entry import Entry
from thunder_core.backend.cache.explanation import MissExplanation, explain
from thunder_core.backend.cache.folders import ENTRIES, cache_folder, open_entries
from thunder_core.backend.cache.key import Key
from thunder_core.backend.cache.manifest import Damage
from thunder_core.backend.cache.prune import Freed, choose_removed
from thunder_core.backend.cache.read import read_entry
from thunder_core.backend.cache.record import Record, mark_used, read_records
from thunder_core.foundation.errors import CacheNotUsable
from thunder_core.foundation.progress_marks import mark_progress
from thunder_core.foundation.storage.absolute import absolute
from thunder_core.foundation.storage.full_disk import fullness

LOGGER = logging.getLogger("thunder_core.cache")
PATIENCE = 600.0  # seconds; longer than any kernel takes to compile


class Store:
    """A folder of compiled kernels (default: `kernels` in the cache folder), safe with many processes at once.

    >>> import tempfile
    >>> store = Store(tempfile.mkdtemp())
    >>> key = Key("example", {"region": "f00d", "compiler": "g++ 13.1"})
    >>> def build(folder):
    ...     (folder / "kernel.so").write_bytes(b"machine code")
    >>> store.get_or_build(key, build, label="layer 0").read("kernel.so")
    b'machine code'
    >>> store.get(key).files["kernel.so"].read_bytes()  # a private copy, for a loader that needs a path
    b'machine code'

    An entry is verified completely before it is returned; a damaged entry is dropped and built again. `counts` has the
    `hits`, `misses` and `dropped` of this object. A store that cannot be written, or whose disk is full, can still be
    read: newly compiled code is then used but not kept, and the log says so.
    """

    def __init__(self, folder: str | Path | None = None, *, patience: float = PATIENCE) -> None:
        """Use the store in this folder, which is created if needed.

        Wait at most `patience` seconds for other processes.
        """
        self.folder = cache_folder() / "kernels" if folder is None else absolute(folder)
        self.patience = patience
        self.counts: Counter[str] = Counter()

    def get(self, key: Key) -> Entry | None:
        """Return the verified entry for a key; None if there is none, or if it was damaged and has been dropped.

        Raises `CacheNotUsable` if other users can write to the store.
        """
        entry, _ = self._find_sound(key)
        self.counts["hits" if entry else "misses"] += 1
        return entry

    def get_or_build(self, key: Key, build: Build, label: str = "") -> Entry:
        """Return the entry for a key; if there is none, one of the processes that need the entry builds it.

        A process that has waited for `patience` seconds, or cannot write to the store, builds the code for itself.

        `build(folder)` writes regular files into an empty folder. The entry appears as a whole when `build` returns; if
        `build` raises, or the process is killed, no entry appears. `label` describes the kernel for people. Raises
        `CacheNotUsable` if other users can write to the store, `OutOfDisk` if neither the disk of the store nor the
        disk of temporary files has room, and any exception of `build`.
        """
        mark_progress(f"build {label or key.executor}")
        entry, damage = self._find_sound(key)
        if entry is None:
            # `lock_failure` is empty if this process holds the lock; otherwise it is the reason why not.
            with entry_lock(self.folder, key.digest, self.patience) as lock_failure:
                entry, later_damage = self._find_sound(key)  # another process may have built it while we waited
                if entry is None:
                    self.counts["misses"] += 1
                    return self._build(key, build, label, damage or later_damage, lock_failure)
        self.counts["hits"] += 1
        return entry

    def entries(self) -> list[Record]:
        """Return the entries of the store, latest used first; files are not read, so damage may go unnoticed."""
        return sorted(read_records(self.folder), key=lambda record: record.used, reverse=True)

    def verify(self) -> list[Record]:
        """Read and verify every file of every entry; entries whose `damage` is not empty have been dropped.

        Raises `CacheNotUsable` if a damaged entry cannot be removed.
        """
        records = [self._verify(record) for record in self.entries()]
        damaged = [record for record in records if record.damage]
        self._remove(damaged)
        self.counts["dropped"] += len(damaged)
        return records

    def prune(self, *, max_bytes: int | None = None, max_age: timedelta | None = None, dry_run: bool = False) -> Freed:
        """Remove entries that were not used for `max_age`, and the least recently used entries beyond `max_bytes`.

        Entries with a damaged manifest are always removed, and so are folders left by killed processes. With `dry_run`,
        nothing is removed. Raises `CacheNotUsable` if an entry cannot be removed.
        """
        return self._free(choose_removed(self.entries(), max_bytes, max_age), dry_run=dry_run)

    def clear(self, *, model: str | None = None, dry_run: bool = False) -> Freed:
        """Remove all entries, or the entries built for a model, and folders left by killed processes.

        With `dry_run` nothing is removed. Raises `CacheNotUsable` if an entry cannot be removed.
        """
        records = self.entries()
        removed = tuple(record for record in records if model in (None, record.model))
        kept = tuple(record for record in records if model not in (None, record.model))
        return self._free(Freed(removed, kept), dry_run=dry_run)

    def why(self, key: Key, label: str = "") -> MissExplanation:
        """Explain why an entry was built: compare its key with the key of the most similar earlier entry."""
        records = self.entries()
        own = next((record for record in records if record.digest == key.digest and not record.damage), None)
        miss = MissExplanation(
            digest=key.digest,
            executor=key.executor,
            label=label or (own.label if own else ""),
            kept=own is not None,
            replaced=own.replaced if own else "",
        )
        return explain(miss, key.fields, [record for record in records if own is None or record.created < own.created])

    def _find_sound(self, key: Key) -> tuple[Entry | None, str]:
        """Return the verified entry and "". If there is none, return None and the damage of the entry that was dropped.

        The damage is "" if the entry is missing or unreadable.
        """
        try:
            with open_entries(self.folder) as entries:
                entry = read_entry(entries, key.digest)
        except OSError:  # an entry that is missing or unreadable is a miss
            return None, ""
        except Damage as damage:
            is_removed = drop_entry(self.folder, key.digest)
            self.counts["dropped"] += is_removed
            outcome = "was removed" if is_removed else "cannot be removed"
            LOGGER.warning("the entry %s is damaged and %s: %s", key.digest[:12], outcome, damage)
            return None, str(damage)
        mark_used(self.folder / ENTRIES / key.digest)
        return entry, ""

    def _build(self, key: Key, build: Build, label: str, replaced: str, hindrance: str) -> Entry:
        if not hindrance:
            try:
                return build_entry(self.folder, key, build, label, replaced)
            except OSError as error:
                full = fullness(error)
                if full is None:
                    raise
                hindrance = full.what
        _warn_once(self.folder, hindrance)
        return build_unstored(key, build, label)

    def _verify(self, record: Record) -> Record:
        if record.damage:
            return record
        try:
            with open_entries(self.folder) as entries:
                read_entry(entries, record.digest)
        except OSError:
            return record  # another process has dropped it, or this process lacks memory or descriptors
        except Damage as damage:
            return record.model_copy(update={"damage": str(damage)})
        return record

    def _free(self, freed: Freed, *, dry_run: bool) -> Freed:
        if not dry_run:
            self._clean_up()
            self._remove(freed.removed)
        return freed

    def _remove(self, records: Sequence[Record]) -> None:
        """Remove entries; raise `CacheNotUsable` if an entry cannot be removed."""
        not_removed = [record for record in records if not drop_entry(self.folder, record.digest)]
        if not_removed:
            raise CacheNotUsable(
                f"{len(not_removed)} of {len(records)} entries cannot be removed from the cache folder {self.folder}",
                fix="check the owner and the permissions of these entries",
            )

    def _clean_up(self) -> None:
        """Remove unfinished folders whose lock is free: a killed process has left them."""
        one_name_for_each_lock = {path.name[:LOCK_DIGITS]: path.name for path in unfinished_folders(self.folder)}
        for name in one_name_for_each_lock.values():
            with entry_lock(self.folder, name, 0.0) as lock_failure:
                if not lock_failure:
                    clean_up(self.folder, name)


@cache
def _warn_once(folder: Path, hindrance: str) -> None:
    """Warn that compiled code is not cached, once for each folder and reason."""
    LOGGER.warning("compiled code is not cached in %s: %s", folder, hindrance)
