"""Names that a class hides from its instances: checks that cost little until the class changes."""

from __future__ import annotations

from typing import Any

from thunder_core.foundation.type_flags import IMMUTABLE_TYPE
from thunder_core.tracing.library.changes.class_entries import ABSENT, class_entry
from thunder_core.tracing.library.changes.type_versions import ClassCaches, cached_by_version

DATA_METHODS = ("__set__", "__delete__")


@cached_by_version(ClassCaches())
def defines(kind: type, names: str) -> tuple[bool, bool]:
    """Whether a class defines one of these names, separated by spaces, so that `__getattr__` is not called for it."""
    return any(class_entry(kind, name) is not ABSENT for name in names.split()), True


@cached_by_version(ClassCaches())
def overrides(kind: type, names: str) -> tuple[bool, bool]:
    """Whether a class has a data descriptor, such as a property, for one of these names, separated by spaces.

    Python then uses the descriptor, not the value that an instance stores.
    """
    entries = [class_entry(kind, name) for name in names.split()]
    return any(map(is_data_descriptor, entries)), not any(map(may_become_descriptor, entries))


def is_data_descriptor(value: object) -> bool:
    """Whether a class entry is used also for an instance that stores the name."""
    return any(class_entry(type(value), method) is not ABSENT for method in DATA_METHODS)


def may_become_descriptor(value: Any) -> bool:
    """Whether the class of an entry may change."""
    return value is not ABSENT and not type(value).__flags__ & IMMUTABLE_TYPE
