"""Access to CPython's C structures: set the handled exception, make a frame object.

All C functions and fields are accessed through `ctypes`. The offsets of fields are known for the versions and builds
in `versions`. On other versions and builds, the first use of an offset raises an error, and no memory is accessed.
"""

import ctypes
import struct
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from thunder_core.frontend.interpreter.versions import RUNNING_VERSION, Build, Version, require_supported

_api = ctypes.pythonapi
_POINTER = struct.calcsize("P")


@dataclass(frozen=True)
class Offsets:
    """The offsets of fields in CPython's objects, in bytes from their beginning."""

    # PyFrameObject, and the _PyInterpreterFrame that it points to
    frame_back: int = 2 * _POINTER
    frame_data: int = 3 * _POINTER
    data_instruction: int = 7 * _POINTER
    data_stack_top: int = 8 * _POINTER
    data_locals: int = 9 * _POINTER
    # PyWeakReference
    referent: int = 2 * _POINTER
    # PyThreadState, only of 3.12
    thread_c_calls: int = 36
    # Since 3.14, a frame's slots are tagged references: the bits of an empty slot, and the tag of a borrowed object.
    # The top of its stack is an address since 3.14, and a count before.
    empty: int = 0
    borrowed: int = 0
    top_is_address: bool = False


class UnknownOffsets(Offsets):
    """The offsets of an unknown Python version: each use raises `PythonNotSupported`."""

    def __init__(self, version: Version, build: Build) -> None:
        object.__setattr__(self, "requested", (version, build))

    def __getattribute__(self, name: str) -> Any:
        require_supported(*object.__getattribute__(self, "requested"))
        return super().__getattribute__(name)


# One entry for each version whose bytecode is known. The first three are equal.
OFFSETS: dict[Version, Offsets] = {
    (3, 11): Offsets(),
    (3, 12): Offsets(),
    (3, 13): Offsets(),
    (3, 14): Offsets(data_locals=10 * _POINTER, empty=1, borrowed=1, top_is_address=True),
}


def offsets_of(version: Version, build: Build) -> Offsets:
    """Return the offsets of a Python version; for an unknown version, offsets whose use raises `PythonNotSupported`."""
    is_known = version in OFFSETS and not build.problem
    return OFFSETS[version] if is_known else UnknownOffsets(version, build)


_offsets = offsets_of(RUNNING_VERSION, Build())

# Objects are passed to C as addresses, because ctypes' own conversion of objects would read their `__class__`.
_set_handled_exception = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyErr_SetHandledException", _api))
_increment = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("Py_IncRef", _api))
_decrement = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("Py_DecRef", _api))
_thread_state = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", _api))
_new_frame = ctypes.PYFUNCTYPE(ctypes.py_object, *4 * [ctypes.c_void_p])(("PyFrame_New", _api))

# A local variable without a value.
UNBOUND: Any = object()


def proxied_object(proxy: object) -> Any:
    """Return the object behind a proxy of `weakref.proxy`; None if it no longer exists."""
    return ctypes.py_object.from_address(id(proxy) + _offsets.referent).value


def is_proxy(value: object) -> bool:
    """Whether a value is a `weakref.proxy`. This runs no code of the value's metaclass, as `isinstance` would."""
    kind = type(value)
    return kind is weakref.ProxyType or kind is weakref.CallableProxyType


def unwrap(value: object) -> Any:
    """Return the object behind a weak proxy if it exists; return other values unchanged."""
    kind = type(value)
    if kind is not weakref.ProxyType and kind is not weakref.CallableProxyType:
        return value
    referent = proxied_object(value)
    return value if referent is None else referent


def set_handled_exception(error: BaseException | None) -> None:
    """Make `error` the exception that is being handled in this thread or in the innermost native generator."""
    _set_handled_exception(id(error))


def new_frame(code: CodeType, global_names: dict[str, Any], namespace: object) -> FrameType:
    """Make a frame object of `code` that is not on a C stack; `namespace` is None if locals are fast."""
    last = None if namespace is None else id(namespace)
    frame: FrameType = _new_frame(_thread_state(), id(code), id(global_names), last)
    frame.f_trace_lines = False  # `without_own_entries` recognizes the frame by this attribute
    return frame


def set_back(frame: FrameType, back: FrameType | None) -> None:
    """Set `frame.f_back`."""
    _store_reference(ctypes.c_void_p.from_address(id(frame) + _offsets.frame_back), UNBOUND if back is None else back)


def set_instruction(frame: FrameType, offset: int) -> None:
    """Set `frame.f_lasti` to a byte offset in the code; `f_lineno` changes accordingly."""
    pointer = ctypes.c_void_p.from_address(_frame_data(frame) + _offsets.data_instruction)
    old_offset = frame.f_lasti
    pointer.value = (pointer.value or 0) - (old_offset if old_offset >= 0 else -2) + offset


def set_locals(frame: FrameType, values: Sequence[Any], start: int = 0) -> None:
    """Write `values` (cells for cell variables, UNBOUND for none) to the local slots from `start` on."""
    data = _frame_data(frame)
    _set_stack_top(data, start + len(values))
    for index, value in enumerate(values, start):
        _store_reference(
            ctypes.c_void_p.from_address(data + _offsets.data_locals + index * _POINTER),
            value,
            _offsets.empty,
            _offsets.borrowed,
        )


def _set_stack_top(data: int, count: int) -> None:
    """Set the number of used slots of a frame."""
    if _offsets.top_is_address:
        ctypes.c_void_p.from_address(data + _offsets.data_stack_top).value = (
            data + _offsets.data_locals + count * _POINTER
        )
    else:
        ctypes.c_int.from_address(data + _offsets.data_stack_top).value = count


def c_calls_left() -> ctypes.c_int:
    """Return a view of the remaining C recursion depth of this thread. The field's offset is valid for 3.12 only."""
    return ctypes.c_int.from_address(_thread_state() + _offsets.thread_c_calls)


def _frame_data(frame: FrameType) -> int:
    """Return the address of the _PyInterpreterFrame of a frame object."""
    return ctypes.c_void_p.from_address(id(frame) + _offsets.frame_data).value or 0


def _store_reference(slot: ctypes.c_void_p, value: object, empty: int = 0, borrowed: int = 0) -> None:
    """Store a counted reference to `value` in a C slot, and release the slot's old reference unless it is borrowed."""
    old = slot.value or 0
    if value is UNBOUND:
        slot.value = empty
    else:
        _increment(id(value))
        slot.value = id(value)
    if old and not old & borrowed:
        _decrement(old)
