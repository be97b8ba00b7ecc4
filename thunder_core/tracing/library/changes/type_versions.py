"""CPython's version of a type: a number that changes when the type or a base changes."""

from __future__ import annotations

import contextlib
import ctypes
import struct

OFFSET = 48 * struct.calcsize("P")  # of `tp_version_tag` in PyTypeObject, in bytes, in CPython 3.11 to 3.14


def type_version(kind: type) -> ctypes.c_uint:
    """Return a view of a type's version. The view does not keep the type alive; its `value` 0 means unknown."""
    return ctypes.c_uint.from_address(id(kind) + OFFSET)


def assign_version(kind: type) -> None:
    """Make CPython assign a version to a type, as CPython does on a lookup. No user code runs."""
    with contextlib.suppress(AttributeError):
        type.__getattribute__(kind, "no type has this name")


def _is_found() -> bool:
    """Whether the offset is right in this build of Python, tried on a new class that is then changed."""
    kind = type("Tried", (), {})
    versions = type_version(kind)
    assign_version(kind)
    first = versions.value
    type.__setattr__(kind, "name", 0)
    assign_version(kind)
    return 0 < first < versions.value < first + 100


HAS_VERSIONS = _is_found()
