"""Flags of classes in CPython, as bits of `__flags__` (`Py_TPFLAGS_*` in the C API's page on type objects)."""

from __future__ import annotations

HAS_MANAGED_DICT = 1 << 4  # instances have their dict of attributes in memory that Python manages
IMMUTABLE_TYPE = 1 << 8  # the attributes of the class cannot be set; classes of Python never have this flag
HEAP_TYPE = 1 << 9  # the class was created at run time, such as by a `class` statement
BASE_TYPE = 1 << 10  # other classes can derive from the class
