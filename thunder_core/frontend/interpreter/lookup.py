"""Lookup of names in types: CPython's `_PyType_Lookup`, cached as long as the type is unchanged."""

import contextlib
import ctypes
import weakref
from collections.abc import Callable
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
from typing import Any

from thunder_core.frontend.interpreter.native import UNBOUND, type_version

ABSENT = UNBOUND
dict_of: Callable[[type], Any] = type.__dict__["__dict__"].__get__
mro_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
# Classes of attributes that consist of code. Other attributes may be data, such as tensors, and are not kept alive.
CODE = frozenset(
    {
        *(FunctionType, BuiltinFunctionType, property, classmethod, staticmethod, type),
        *(WrapperDescriptorType, MethodDescriptorType, ClassMethodDescriptorType),
        *(GetSetDescriptorType, MemberDescriptorType),
    }
)


class _View:
    """The cached lookups in one type, valid for one version of the type.

    `found` maps a name to its attribute if the attribute is code, to ABSENT, or to the index in the MRO of the base
    that has the attribute.
    """

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
        if type(cached) is int:
            return dict_of(mro_of(kind)[cached]).get(name, ABSENT)  # a thread may have deleted it
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
    attribute = place = ABSENT
    for index, base in enumerate(mro_of(kind)):
        names = dict_of(base)
        if name in names:
            attribute = names[name]
            place = attribute if type(attribute) in CODE else index
            break
    if view.version and view.version == version == view.versions.value:  # no other thread has changed the type
        view.found[name] = place
    return attribute


def forget_lookups() -> None:
    """Drop all cached lookups: functions that are found refer to their classes, which would never be freed."""
    _views.clear()


def _assign_version(kind: type) -> None:
    """Make CPython assign a version to the type, as it does on a lookup. No user code runs."""
    with contextlib.suppress(AttributeError):
        type.__getattribute__(kind, "no type has this name")


def python_method(kind: type, name: str) -> FunctionType | None:
    """Return the Python function that a type has under a special name; None for anything else."""
    attribute = type_lookup(kind, name)
    return attribute if type(attribute) is FunctionType else None
