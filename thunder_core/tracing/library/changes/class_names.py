"""Check, for prologues, whether a class defines or overrides names. Results are cached until the class changes.

Each check returns its result, and whether the result holds until the version of the class changes.
"""

from __future__ import annotations

from typing import Any

from thunder_core.foundation.type_flags import IMMUTABLE_TYPE
from thunder_core.tracing.library.changes.class_entries import ABSENT, class_entry
from thunder_core.tracing.library.changes.type_versions import ClassCaches, cached_by_version

DATA_METHODS = ("__set__", "__delete__")  # the methods that make a descriptor a data descriptor


@cached_by_version(ClassCaches())
def defines(kind: type, names: str) -> tuple[bool, bool]:
    """Whether a class defines one of these names, separated by spaces.

    Python calls no `__getattr__` for such a name.
    """
    return any(class_entry(kind, name) is not ABSENT for name in names.split()), True


@cached_by_version(ClassCaches())
def overrides(kind: type, names: str) -> tuple[bool, bool]:
    """Whether a class has a data descriptor, such as a property, for one of these names, separated by spaces.

    Python then uses the descriptor, not the value that an instance stores.
    """
    entries = [class_entry(kind, name) for name in names.split()]
    return any(map(is_data_descriptor, entries)), not any(map(may_become_descriptor, entries))


def is_data_descriptor(value: object) -> bool:
    """Whether a class entry is a data descriptor, which takes precedence over a value that an instance stores."""
    return any(class_entry(type(value), method) is not ABSENT for method in DATA_METHODS)


def may_become_descriptor(value: Any) -> bool:
    """Whether a class entry could become a data descriptor although the class that has the entry does not change.

    This is possible if the class of the entry itself can be changed.
    """
    return value is not ABSENT and not type(value).__flags__ & IMMUTABLE_TYPE
