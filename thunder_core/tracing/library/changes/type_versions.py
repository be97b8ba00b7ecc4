"""Read CPython's version of a type, which changes when the type or a base changes, and cache results by version."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import struct
import weakref
from collections.abc import Callable
from typing import Any

OFFSET = 48 * struct.calcsize("P")  # bytes; the offset of `tp_version_tag` in PyTypeObject, in CPython 3.11 to 3.14


def type_version(kind: type) -> ctypes.c_uint:
    """Return a view of a type's version. The view does not keep the type alive; its `value` 0 means unknown."""
    return ctypes.c_uint.from_address(id(kind) + OFFSET)


def assign_version(kind: type) -> None:
    """Make CPython assign a version to a type by a lookup. No user's code runs."""
    with contextlib.suppress(AttributeError):
        type.__getattribute__(kind, "no type has this name")


def _is_found() -> bool:
    """Whether the offset is right in this build of Python; a new class is changed to test this."""
    kind = type("Tried", (), {})
    versions = type_version(kind)
    assign_version(kind)
    first = versions.value
    type.__setattr__(kind, "name", 0)
    assign_version(kind)
    return 0 < first < versions.value < first + 100


HAS_VERSIONS = _is_found()


class ClassCache(dict[str, Any]):
    """Results for one class by name, valid for one version of the class."""

    __slots__ = ("reference", "version", "versions")

    def __init__(self, kind: type, caches: ClassCaches) -> None:
        super().__init__()
        self.versions: ctypes.c_uint = type_version(kind)
        self.version = 0
        key = id(kind)
        self.reference = weakref.ref(kind, lambda _: caches.pop(key, None))

    def store(self, name: str, result: object, version: int) -> None:
        """Store a result that was found at a version, unless the class has changed or has no version."""
        if version and self.version == version == self.versions.value:
            self[name] = result


class ClassCaches(dict[int, ClassCache]):
    """The cache of each class, by the class's id."""

    def current(self, kind: type) -> ClassCache:
        """Return the cache for the current version of a class; its `version` is 0 if Python gives the class none."""
        cache = self.get(id(kind))
        if cache is None:
            cache = self[id(kind)] = ClassCache(kind, self)
        if not cache.versions.value:
            assign_version(kind)
        version = cache.versions.value if HAS_VERSIONS else 0
        if version != cache.version or not version:
            cache.clear()
            cache.version = version
        return cache


Find = Callable[[type, str], tuple[Any, bool]]


def cached_by_version(caches: ClassCaches) -> Callable[[Find], Callable[[type, str], Any]]:
    """Cache a function's result for a class and a name, until the class or a base changes.

    The function returns the result, and whether the result is valid until the class changes.
    """

    def decorate(find: Find) -> Callable[[type, str], Any]:
        @functools.wraps(find)
        def find_cached(kind: type, name: str) -> Any:
            cache = caches.get(id(kind))
            if cache is not None and cache.versions.value == cache.version:
                result = cache.get(name, cache)
                if result is not cache:
                    return result
            cache = caches.current(kind)
            version = cache.version
            result, stays = find(kind, name)
            if stays:
                cache.store(name, result, version)
            return result

        return find_cached

    return decorate
