"""The reason why an entry was built: the field of its key that differs from an earlier entry for the same program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from thunder_core.backend.cache.key import REGION
from thunder_core.backend.cache.record import Record
from thunder_core.foundation.storage.manifest import StoredFacts


class KeyDifference(StoredFacts):
    """A field in which two keys differ. `was` or `now` is None if that key lacks the field."""

    field: str
    was: str | None
    now: str | None

    @property
    def sides(self) -> tuple[str | None, str | None]:
        """The field's value before and now."""
        return self.was, self.now

    def __str__(self) -> str:
        was, now = ("not named" if text is None else text for text in self.sides)
        return f"{self.field}: was {was}, is {now}"


class MissExplanation(StoredFacts):
    """The differences of an entry from the most similar earlier entry, if there is one.

    `kept` says whether an entry with this key is in the store now. `replaced` describes the damage of the earlier entry
    that this entry replaced.
    """

    digest: str
    executor: str
    label: str
    kept: bool
    replaced: str = ""
    nearest: Record | None = None
    differences: tuple[KeyDifference, ...] = ()


def explain(miss: MissExplanation, fields: Mapping[str, str], earlier: Iterable[Record]) -> MissExplanation:
    """Return a miss with its differences from the earlier entry that differs in the fewest fields.

    If several entries differ in equally few fields, the latest entry is used.
    """
    related = [record for record in earlier if _is_related(record, miss, fields)]
    if not related:
        return miss
    nearest = min(related, key=lambda record: (len(differences(record.fields, fields)), -record.created.timestamp()))
    return miss.model_copy(update={"nearest": nearest, "differences": differences(nearest.fields, fields)})


def differences(was: Mapping[str, str], now: Mapping[str, str]) -> tuple[KeyDifference, ...]:
    """Return the fields that differ, in the order of their names."""
    names = sorted({*was, *now})
    return tuple(
        KeyDifference(field=name, was=was.get(name), now=now.get(name))
        for name in names
        if was.get(name) != now.get(name)
    )


def _is_related(record: Record, miss: MissExplanation, fields: Mapping[str, str]) -> bool:
    """Whether an entry has the same region and executor, or the same label."""
    if record.damage or record.executor != miss.executor:
        return False
    same_region = REGION in fields and record.fields.get(REGION) == fields[REGION]
    return same_region or (bool(miss.label) and record.label == miss.label)
