"""The lookup of names in types: CPython's `_PyType_Lookup`, remembered for as long as the type is unchanged."""

import contextlib
import ctypes
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

from thunder_core.frontend.interpreter.native import UNBOUND, type_version

ABSENT = UNBOUND
dict_of: Callable[[type], Any] = type.__dict__["__dict__"].__get__
mro_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__


class _View:
    """The lookups made in one type, valid for one version of it."""

    __slots__ = ("found", "reference", "shortcuts", "version", "versions")

    def __init__(self, kind: type) -> None:
        self.found: dict[str, Any] = {}
        self.shortcuts: dict[str, Any] = {}
        self.versions: ctypes.c_uint = type_version(kind)
        self.version = 0
        key = id(kind)
        self.reference = weakref.ref(kind, lambda _: _views.pop(key, None))


_views: dict[int, _View] = {}


def type_lookup(kind: type, name: str) -> Any:
    """The attribute that the type or a base defines, unbound; ABSENT if none does."""
    view = _views.get(id(kind))
    if view is not None and view.versions.value == view.version:
        found = view.found.get(name, view)
        if found is not view:
            return found
    return _look(kind, name)


def shortcut(kind: type, name: str) -> Any:
    """The entry that `remember` has kept for a name of a type that has not changed since; None if there is none."""
    view = _views.get(id(kind))
    if view is not None and view.versions.value == view.version:
        return view.shortcuts.get(name)
    return None


def remember(kind: type, name: str, found: Any) -> None:
    """Keep something about a name of a type until the type changes."""
    view = _views.get(id(kind))
    if view is not None and view.version and view.versions.value == view.version:
        view.shortcuts[name] = found


def _look(kind: type, name: str) -> Any:
    """Look a name up along the bases and remember the answer."""
    view = _views.get(id(kind))
    if view is None:
        view = _views[id(kind)] = _View(kind)
    if not view.versions.value:
        _ask_for_version(kind)
    if view.version != view.versions.value or not view.version:
        view.found.clear()
        view.shortcuts.clear()
        view.version = view.versions.value
    found = ABSENT
    for base in mro_of(kind):
        names = dict_of(base)
        if name in names:
            found = names[name]
            break
    if view.version:
        view.found[name] = found
    return found


def _ask_for_version(kind: type) -> None:
    """Let CPython give the type a version, as it does on a lookup; no user's code runs."""
    with contextlib.suppress(AttributeError):
        type.__getattribute__(kind, "no type has this name")


def python_method(kind: type, name: str) -> FunctionType | None:
    """The Python function that a type has under a special name, if that is what it has."""
    found = type_lookup(kind, name)
    return found if type(found) is FunctionType else None
