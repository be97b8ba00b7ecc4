"""Detect that the code of a function was replaced, as reloading tools do; the function stays the same object."""

from __future__ import annotations

import types
import weakref
from typing import Any

# For each function, by its `id`: the code that it had when it was first traced in this process.
_first: dict[int, tuple[types.CodeType, Any]] = {}


def has_first_code(function: types.FunctionType) -> bool:
    """Whether a function has the same code as at the first call of `has_first_code` for this function."""
    try:
        return _first[id(function)][0] is function.__code__
    except KeyError:
        key = id(function)
        reference = weakref.ref(function, lambda _: _first.pop(key, None))
        return _first.setdefault(key, (function.__code__, reference))[0] is function.__code__
