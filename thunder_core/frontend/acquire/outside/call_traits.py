"""Traits of calls that decide what an acquisition does with them."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable
from typing import Any

from thunder_core.tracing.ir.constants import BY_IDENTITY, is_constant

SHALLOW = frozenset({len, isinstance, iter, next, list, tuple, dict, enumerate, zip, reversed, bool, id, type, getattr})
KEEPING = ("append", "extend", "setdefault")


def without_self(replacement: Callable[..., Any], method: types.MethodType) -> Callable[..., Any]:
    """A replacement for a function, to be called with a bound method's arguments."""
    return lambda *args, **kwargs: replacement(method.__self__, *args, **kwargs)


def is_of_classes(function: Any) -> bool:
    """Whether the function looks at the class or the identity of what it is given, and at nothing in it."""
    return type(function) in (type, types.BuiltinFunctionType) and function in (isinstance, id, type, getattr, hasattr)


def reference_asked(function: Any) -> Any:
    """The weak reference that a call of C's asks for its object, by itself or by `super().__call__()`; else None."""
    asked = type(function) is types.MethodWrapperType and function.__name__ == "__call__"
    reference = function.__self__ if asked else function
    return reference if issubclass(type(reference), weakref.ref) else None


def is_making_class(function: Any, args: tuple[Any, ...]) -> bool:
    """Whether a class is called that makes classes: a metaclass; `type` does with more than one argument."""
    return isinstance(function, type) and issubclass(function, type) and len(args) > 1


def is_shallow(function: Any) -> bool:
    """Whether the function looks at the items of the containers that it is given, and not into them."""
    try:
        return function in SHALLOW or getattr(function, "__name__", "") in KEEPING
    except TypeError:  # an unhashable callable
        return False


def is_fixed(value: Any) -> bool:
    """Whether a value is known by itself, and so are its parts."""
    if type(value) is tuple:
        return all(map(is_fixed, value))
    return is_constant(value) or isinstance(value, BY_IDENTITY)


def is_plain_mapping(value: Any) -> bool:
    """Whether asking the value for a key runs dict's own code."""
    return isinstance(value, dict) and type(value).__contains__ is dict.__contains__
