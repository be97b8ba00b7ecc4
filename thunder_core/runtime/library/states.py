"""The state of objects of C that have no attributes to ask for: plain data by which a prologue compares them."""

from __future__ import annotations

import array
import datetime as dt
import decimal
import hashlib
import re
import types
from collections.abc import Callable
from typing import Any

State = Callable[[Any], Any]


def digest(data: Any) -> str:
    """A digest of bytes, or of a buffer."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def of_array(value: Any) -> Any:
    """The dtype, shape and data of an array of NumPy's."""
    return (value.dtype.str, value.shape, digest(value.tobytes()))


STATES: dict[type | str, State] = {
    **dict.fromkeys((dt.date, dt.time, dt.datetime, dt.timedelta, dt.timezone, decimal.Decimal, re.Pattern), repr),
    bytearray: bytes,
    **dict.fromkeys((types.GenericAlias, types.UnionType, "typing._GenericAlias"), lambda value: value),
    array.array: lambda value: (value.typecode, value.tobytes()),
    memoryview: lambda value: (value.format, value.shape, value.tobytes()),
    "numpy.generic": lambda value: (value.dtype.str, value.tobytes()),
    "numpy.ndarray": of_array,
    "numpy.dtype": repr,
}


_known: dict[type, State | None] = {}


def state_function(kind: type) -> State | None:
    """The function that tells the state of a class's instances; None where attributes and items do, or nothing does."""
    if kind not in _known:
        _known[kind] = _found(kind)
    return _known[kind]


def _found(kind: type) -> State | None:
    names = [f"{base.__module__}.{base.__name__}" for base in kind.__mro__]
    known: list[type | str] = [kind, *names]
    return next((STATES[name] for name in known if name in STATES), None)


def has_state(value: Any) -> bool:
    """Whether an object's state is compared as a whole; arrays of Python objects have none that could be."""
    return state_function(type(value)) is not None and not getattr(getattr(value, "dtype", None), "hasobject", False)


def state_of(value: Any) -> Any:
    """The state of an object of one of the classes in `STATES`, as plain data."""
    tell = state_function(type(value))
    assert tell is not None
    return tell(value)
