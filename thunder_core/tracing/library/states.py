"""Read the state of C objects without attributes, as plain data that a prologue compares."""

from __future__ import annotations

import array
import copy
import datetime as dt
import decimal
import functools
import gc
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
    """Return a digest of bytes or of a buffer."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def array_state(value: Any) -> Any:
    """Return the dtype, shape and data of a NumPy array."""
    return (value.dtype.str, value.shape, digest(value.tobytes()))


def memory_state(value: Any) -> Any:
    """Return the size and the bytes of an object of ctypes."""
    return (len(memoryview(value).cast("B")), digest(value))


def text_buffer_state(value: Any) -> Any:
    """Return the text of a `StringIO` and its position; None if it is closed."""
    return None if value.closed else (len(value.getvalue()), digest(value.getvalue().encode(*UTF)), value.tell())


def buffer_state(value: Any) -> Any:
    """Return the bytes of a `BytesIO` and its position; None if it is closed."""
    return None if value.closed else (len(value.getbuffer()), digest(value.getbuffer()), value.tell())


def context_state(value: Any) -> Any:
    """Return the settings of a decimal context, without its flags, which do not affect computations."""
    traps = tuple(sorted(signal.__name__ for signal, is_trapped in value.traps.items() if is_trapped))
    return (value.prec, value.rounding, value.Emin, value.Emax, value.capitals, value.clamp, traps)


def decimal_settings() -> Any:
    """Return the settings of the current decimal context."""
    return context_state(decimal.getcontext())


def numpy_settings() -> Any:
    """Return NumPy's settings for printing and for numeric errors; None if NumPy is not imported."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    errors = tuple(sorted(numpy.geterr().items()))
    options = tuple((name, repr(value)) for name, value in sorted(numpy.get_printoptions().items()))
    return (errors, repr(numpy.geterrcall()), numpy.getbufsize(), options)


def state_restorer(value: object) -> Callable[[], Any] | None:
    """Return a function that restores an object's present state; None if the object cannot be restored."""
    if isinstance(value, io.StringIO | io.BytesIO):
        return None if value.closed else functools.partial(put_buffer_back, value, value.getvalue(), value.tell())
    if not hasattr(value, "__setitem__"):
        return None
    contents = value.tobytes() if isinstance(value, memoryview) else copy.copy(value)
    return functools.partial(value.__setitem__, () if hasattr(value, "flags") else slice(None), contents)


def put_buffer_back(value: Any, contents: Any, position: int) -> None:
    """Restore the contents and the position of a `StringIO` or a `BytesIO`."""
    value.seek(0)
    value.truncate()
    value.write(contents)
    value.seek(position)


UTF = ("utf-8", "surrogatepass")
STATES: dict[type | str, State] = {
    io.StringIO: text_buffer_state,
    io.BytesIO: buffer_state,
    decimal.Context: context_state,
    struct.Struct: lambda value: value.format,
    **dict.fromkeys((dt.date, dt.time, dt.datetime, dt.timedelta, dt.timezone, decimal.Decimal, re.Pattern), repr),
    bytearray: bytes,
    **dict.fromkeys((types.GenericAlias, types.UnionType, "typing._GenericAlias"), lambda value: (value, repr(value))),
    array.array: lambda value: (value.typecode, value.tobytes()),
    **dict.fromkeys((f"_ctypes.{name}" for name in ("Structure", "Union", "Array", "_SimpleCData")), memory_state),
    memoryview: lambda value: (value.format, value.shape, value.tobytes()),
    "numpy.generic": lambda value: (value.dtype.str, value.tobytes()),
    "numpy.ndarray": array_state,
    "numpy.dtype": repr,
    **dict.fromkeys(("torch.finfo", "torch.iinfo"), repr),
}


_state_functions: dict[type, State | None] = {}


def state_function(kind: type) -> State | None:
    """Return the function that reads the state of a class's instances; None if attributes and items are the state."""
    if kind not in _state_functions:
        _state_functions[kind] = _find_state_function(kind)
    return _state_functions[kind]


def _find_state_function(kind: type) -> State | None:
    names = [f"{base.__module__}.{base.__name__}" for base in kind.__mro__]
    keys: list[type | str] = [*kind.__mro__, *names]
    return next((STATES[name] for name in keys if name in STATES), None)


def has_state(value: object) -> bool:
    """Whether an object's state is compared as a whole, except for arrays of Python objects."""
    return state_function(type(value)) is not None and not getattr(getattr(value, "dtype", None), "hasobject", False)


def state_of(value: object) -> Any:
    """Return the state of an object of one of the classes in `STATES`, as plain data."""
    read_state = state_function(type(value))
    assert read_state is not None
    return read_state(value)


def viewed_mapping(view: object) -> Any:
    """Return the mapping behind a dict view or a mapping proxy; the attribute `mapping` of a view is only a proxy."""
    return gc.get_referents(view)[0]
