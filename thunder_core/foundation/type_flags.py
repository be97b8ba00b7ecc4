"""Bits of `__flags__` of a class in CPython (`Py_TPFLAGS_*` on the page of the C API about type objects)."""

from __future__ import annotations

HAS_MANAGED_DICT = 1 << 4  # Python manages the memory of the attribute dicts of instances
IMMUTABLE_TYPE = 1 << 8  # the attributes of the class cannot be set; a class defined in Python never has this flag
HEAP_TYPE = 1 << 9  # the class was created at run time, such as by a `class` statement
BASE_TYPE = 1 << 10  # other classes can derive from the class
