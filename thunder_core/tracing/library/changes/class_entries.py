"""Read the entries of classes without running `__getattribute__` or descriptors of the class or its metaclass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

dict_of: Callable[[type], Any] = type.__dict__["__dict__"].__get__
mro_of: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__

# The result of a lookup of a name that a class does not have.
ABSENT: Any = object()


def class_entry(kind: type, name: str) -> Any:
    """Return the entry with a name in a class or its bases, or `ABSENT`."""
    for base in mro_of(kind):
        names = dict_of(base)
        if name in names:
            return names[name]
    return ABSENT
