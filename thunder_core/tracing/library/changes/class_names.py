"""Names that a class hides from its instances: checks that cost little until the class changes."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

from thunder_core.tracing.library.changes.type_versions import HAS_VERSIONS, assign_version, type_version

dict_of = type.__dict__["__dict__"].__get__
mro_of = type.__dict__["__mro__"].__get__
DATA_METHODS = ("__set__", "__delete__")
ABSENT = object()
IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE, which classes of Python never have


class Checked:
    """The checks of names in one class, valid for one version of the class."""

    __slots__ = ("defining", "overriding", "reference", "version", "versions")

    def __init__(self, kind: type) -> None:
        self.defining: dict[str, bool] = {}
        self.overriding: dict[str, bool] = {}
        self.versions: ctypes.c_uint = type_version(kind)
        self.version = 0
        key = id(kind)
        self.reference = weakref.ref(kind, lambda _: _checked.pop(key, None))


_checked: dict[int, Checked] = {}


def defines(kind: type, names: str) -> bool:
    """Whether a class defines one of these names, separated by spaces, so that `__getattr__` is not called for it."""
    try:
        known = _checked[id(kind)]
        if known.versions.value == known.version:
            return known.defining[names]
    except KeyError:  # not checked for this version
        pass
    result = any(entry(kind, name) is not ABSENT for name in names.split())
    if (checked := current(kind)) is not None:
        checked.defining[names] = result
    return result


def overrides(kind: type, names: str) -> bool:
    """Whether a class has a data descriptor, such as a property, for one of these names, separated by spaces.

    Python then uses the descriptor and not what an instance stores.
    """
    try:
        known = _checked[id(kind)]
        if known.versions.value == known.version:
            return known.overriding[names]
    except KeyError:  # not checked for this version
        pass
    entries = [entry(kind, name) for name in names.split()]
    result = any(map(is_data_descriptor, entries))
    if not any(map(may_become_descriptor, entries)) and (checked := current(kind)) is not None:
        checked.overriding[names] = result
    return result


def entry(kind: type, name: str) -> Any:
    """Return the entry of a class or its bases under a name, or `ABSENT`."""
    return next((dict_of(base)[name] for base in mro_of(kind) if name in dict_of(base)), ABSENT)


def is_data_descriptor(value: Any) -> bool:
    """Whether a class entry is used also for an instance that stores the name."""
    return any(entry(type(value), method) is not ABSENT for method in DATA_METHODS)


def may_become_descriptor(value: Any) -> bool:
    """Whether the class of an entry may change."""
    return value is not ABSENT and not type(value).__flags__ & IMMUTABLE_TYPE


def current(kind: type) -> Checked | None:
    """Return the checks for the current version of a class; None if Python gives the class no version."""
    assign_version(kind)
    checked = _checked.get(id(kind))
    if checked is None:
        checked = _checked[id(kind)] = Checked(kind)
    version = checked.versions.value if HAS_VERSIONS else 0
    if version != checked.version:
        checked.defining.clear()
        checked.overriding.clear()
        checked.version = version
    return checked if version else None
