"""Lookup of names in types: CPython's `_PyType_Lookup`, cached as long as the type is unchanged."""

import ctypes
import functools
from types import FunctionType
from typing import Any

from thunder_core.tracing.library.changes.class_entries import class_entry
from thunder_core.tracing.library.changes.type_versions import ClassCaches, cached_by_version

PARTIAL_FIELDS = {name: vars(functools.partial)[name].__get__ for name in ("func", "args", "keywords")}

TYPE_NAME_OFFSET = object.__basicsize__ + ctypes.sizeof(ctypes.c_ssize_t)  # of `tp_name` in PyTypeObject

_lookups = ClassCaches()
_shortcuts = ClassCaches()


@cached_by_version(_lookups)
def type_lookup(kind: type, name: str) -> tuple[Any, bool]:
    """Return the unbound attribute that the type or a base defines; ABSENT if there is none."""
    return class_entry(kind, name), True


def type_name(kind: type) -> str:
    """Return the name of a type in CPython's messages, which for types of C includes the module (`datetime.date`)."""
    name = ctypes.c_char_p.from_address(id(kind) + TYPE_NAME_OFFSET).value
    return (name or b"").decode()


def shortcut(kind: type, name: str) -> Any:
    """Return the value that `remember` stored for a name, if the type has not changed since; otherwise None."""
    cache = _shortcuts.get(id(kind))
    if cache is not None and cache.versions.value == cache.version:
        return cache.get(name)
    return None


def remember(kind: type, name: str, value: object) -> None:
    """Store a value for a name of a type, until the type changes.

    Nothing is stored unless `type_lookup` has been called for the type, because its cache has the type's version.
    """
    cached = _lookups.get(id(kind))
    if cached is not None:
        _shortcuts.current(kind).store(name, value, cached.version)


def forget_lookups() -> None:
    """Drop all cached lookups, which keep attributes and the classes that cached functions refer to alive."""
    _lookups.clear()
    _shortcuts.clear()


def parts_of_partial(partial: object) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the function, the arguments and the keywords of a partial.

    The C getters of `functools.partial` read these, because a subclass may define its own attribute `func`.
    """
    function, args, keywords = (field(partial) for field in PARTIAL_FIELDS.values())
    return function, args, keywords


def python_method(kind: type, name: str) -> FunctionType | None:
    """Return the type's special method if it is a Python function; None otherwise."""
    attribute = type_lookup(kind, name)
    return attribute if type(attribute) is FunctionType else None
