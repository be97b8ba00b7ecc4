"""The state of objects of C that have no attributes to ask for: plain data by which a prologue compares them."""

from __future__ import annotations

import array
import copy
import datetime as dt
import decimal
import functools
import hashlib
import io
import re
import struct
import sys
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


def of_text_buffer(value: Any) -> Any:
    """The text in a `StringIO`, and where it is read and written; None of one that was closed."""
    return None if value.closed else (len(value.getvalue()), digest(value.getvalue().encode(*UTF)), value.tell())


def of_buffer(value: Any) -> Any:
    """The bytes in a `BytesIO`, and where they are read and written; None of one that was closed."""
    return None if value.closed else (len(value.getbuffer()), digest(value.getbuffer()), value.tell())


def of_context(value: Any) -> Any:
    """The settings of a context of decimal numbers by which it computes; what was signaled before plays no part."""
    traps = tuple(sorted(signal.__name__ for signal, is_trapped in value.traps.items() if is_trapped))
    return (value.prec, value.rounding, value.Emin, value.Emax, value.capitals, value.clamp, traps)


def decimal_settings() -> Any:
    """The settings by which the process computes with decimal numbers now."""
    return of_context(decimal.getcontext())


def numpy_settings() -> Any:
    """The settings by which NumPy prints arrays and handles errors of numbers; None where NumPy is not imported."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    errors = tuple(sorted(numpy.geterr().items()))
    options = tuple((name, repr(value)) for name, value in sorted(numpy.get_printoptions().items()))
    return (errors, repr(numpy.geterrcall()), numpy.getbufsize(), options)


def kept_state(value: Any) -> Callable[[], Any] | None:
    """A function that puts an object back to its present state; None for one that has no way to do that."""
    if isinstance(value, io.StringIO | io.BytesIO):
        return None if value.closed else functools.partial(put_buffer_back, value, value.getvalue(), value.tell())
    if not hasattr(value, "__setitem__"):
        return None
    held = value.tobytes() if isinstance(value, memoryview) else copy.copy(value)
    return functools.partial(value.__setitem__, () if hasattr(value, "flags") else slice(None), held)


def put_buffer_back(value: Any, contents: Any, place: int) -> None:
    """Give a `StringIO` or a `BytesIO` these contents, and the place where it is read and written."""
    value.seek(0)
    value.truncate()
    value.write(contents)
    value.seek(place)


UTF = ("utf-8", "surrogatepass")
STATES: dict[type | str, State] = {
    io.StringIO: of_text_buffer,
    io.BytesIO: of_buffer,
    decimal.Context: of_context,
    struct.Struct: lambda value: value.format,
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
    known: list[type | str] = [*kind.__mro__, *names]
    return next((STATES[name] for name in known if name in STATES), None)


def has_state(value: Any) -> bool:
    """Whether an object's state is compared as a whole; arrays of Python objects have none that could be."""
    return state_function(type(value)) is not None and not getattr(getattr(value, "dtype", None), "hasobject", False)


def state_of(value: Any) -> Any:
    """The state of an object of one of the classes in `STATES`, as plain data."""
    tell = state_function(type(value))
    assert tell is not None
    return tell(value)
