"""Lookup of names in types: CPython's `_PyType_Lookup`, cached as long as the type is unchanged."""

import contextlib
import ctypes
import functools
import weakref
from collections.abc import Callable
from types import FunctionType
from typing import Any

from thunder_core.frontend.interpreter.native import UNBOUND, type_version

ABSENT = UNBOUND
PARTIAL_FIELDS = {name: vars(functools.partial)[name].__get__ for name in ("func", "args", "keywords")}
dict_of: Callable[[type], Any] = type.__dict__["__dict__"].__get__
mro_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__


class _View:
    """The cached lookups in one type, valid for one version of the type."""

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
    """Return the unbound attribute that the type or a base defines; ABSENT if there is none."""
    view = _views.get(id(kind))
    if view is not None and view.versions.value == view.version:
        cached = view.found.get(name, view)
        if cached is not view:
            return cached
    return _look(kind, name)


def shortcut(kind: type, name: str) -> Any:
    """Return the value that `remember` stored for a name, if the type has not changed since; otherwise None."""
    view = _views.get(id(kind))
    if view is not None and view.versions.value == view.version:
        return view.shortcuts.get(name)
    return None


def remember(kind: type, name: str, value: Any) -> None:
    """Store a value for a name of a type, until the type changes."""
    view = _views.get(id(kind))
    if view is not None and view.version and view.versions.value == view.version:
        view.shortcuts[name] = value


def _look(kind: type, name: str) -> Any:
    """Look up a name in the bases, and cache the result."""
    view = _views.get(id(kind))
    if view is None:
        view = _views[id(kind)] = _View(kind)
    if not view.versions.value:
        _assign_version(kind)
    version = view.versions.value
    if view.version != version or not view.version:
        view.found.clear()
        view.shortcuts.clear()
        view.version = version
    attribute = ABSENT
    for base in mro_of(kind):
        names = dict_of(base)
        if name in names:
            attribute = names[name]
            break
    if view.version and view.version == version == view.versions.value:  # no other thread has changed the type
        view.found[name] = attribute
    return attribute


def forget_lookups() -> None:
    """Drop all cached lookups, which keep attributes alive, and the classes that functions among these refer to."""
    _views.clear()


def _assign_version(kind: type) -> None:
    """Make CPython assign a version to the type, as it does on a lookup. No user code runs."""
    with contextlib.suppress(AttributeError):
        type.__getattribute__(kind, "no type has this name")


def parts_of_partial(partial: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the function and the arguments that a call of a partial uses.

    A subclass may have attributes of its own under their names (`func`).
    """
    function, args, keywords = (field(partial) for field in PARTIAL_FIELDS.values())
    return function, args, keywords


def python_method(kind: type, name: str) -> FunctionType | None:
    """Return the Python function that a type has under a special name; None for anything else."""
    attribute = type_lookup(kind, name)
    return attribute if type(attribute) is FunctionType else None
