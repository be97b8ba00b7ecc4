"""The choice of entries to remove: damaged entries, old entries, and the least recently used entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from thunder_core.backend.cache.record import Record


@dataclass(frozen=True)
class Freed:
    """The entries that pruning removed, or would remove in a dry run, and the entries that remain."""

    removed: tuple[Record, ...]
    kept: tuple[Record, ...] = ()

    @property
    def size(self) -> int:
        """The bytes of the removed entries."""
        return sum(record.size for record in self.removed)

    @property
    def kept_size(self) -> int:
        """The bytes of the remaining entries."""
        return sum(record.size for record in self.kept)


def choose_removed(records: Sequence[Record], max_bytes: int | None, max_age: timedelta | None) -> Freed:
    """Choose which records to remove, so that the others are undamaged, not older than an age, and fit into a size."""
    sound = [record for record in records if not record.damage]
    now = datetime.now(UTC)
    young = sound if max_age is None else [record for record in sound if now - record.used <= max_age]
    staying_records = young if max_bytes is None else fitting_records(young, max_bytes)
    staying = {record.digest for record in staying_records}
    return Freed(tuple(record for record in records if record.digest not in staying), tuple(staying_records))


def fitting_records(records: Sequence[Record], room: int) -> list[Record]:
    """Return as many of the most recently used records as fit into `room` bytes together."""
    fitting = []
    for record in sorted(records, key=lambda record: record.used, reverse=True):
        room -= record.size
        if room < 0:
            break
        fitting.append(record)
    return fitting
