"""What only C can do: set the handled exception, make a frame object, read the version of a type.

Each name here is CPython's own, reached through `ctypes`; the offsets hold for 64-bit builds of 3.11 to 3.13.
"""

import ctypes
import sys
import weakref
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

_api = ctypes.pythonapi
_POINTER = ctypes.sizeof(ctypes.c_void_p)

# Offsets in PyFrameObject and in the _PyInterpreterFrame that it points to.
_FRAME_BACK = 2 * _POINTER
_FRAME_DATA = 3 * _POINTER
_DATA_INSTRUCTION = 7 * _POINTER
_DATA_STACK_TOP = 8 * _POINTER
_DATA_LOCALS = 9 * _POINTER
# Offset in 3.12's PyThreadState.
_THREAD_C_CALLS = 36
# Offset in PyWeakReference.
_REFERENT = 2 * _POINTER
# Offset in PyTypeObject.
_TYPE_VERSION = 48 * _POINTER

# Objects go to C as addresses: ctypes' own conversion of objects would read their `__class__`.
_set_handled = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("PyErr_SetHandledException", _api))
_increment = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("Py_IncRef", _api))
_decrement = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(("Py_DecRef", _api))
_thread_state = ctypes.PYFUNCTYPE(ctypes.c_void_p)(("PyThreadState_Get", _api))
_new_frame = ctypes.PYFUNCTYPE(ctypes.py_object, *4 * [ctypes.c_void_p])(("PyFrame_New", _api))

# A local variable that has no value.
UNBOUND: Any = object()


def proxied(proxy: Any) -> Any:
    """The object behind a proxy of `weakref.proxy`; None if it is gone."""
    return ctypes.py_object.from_address(id(proxy) + _REFERENT).value


def is_proxy(value: Any) -> bool:
    """Whether a value is what `weakref.proxy` makes; its class is not asked, since its metaclass may be the user's."""
    kind = type(value)
    return kind is weakref.ProxyType or kind is weakref.CallableProxyType


def unwrapped(value: Any) -> Any:
    """What answers for a value: the object behind a weak proxy that is not gone, else the value itself."""
    if not is_proxy(value):
        return value
    found = proxied(value)
    return value if found is None else found


def set_handled_exception(error: BaseException | None) -> None:
    """Let `error` be the exception that is handled now, in this thread or in the innermost native generator."""
    _set_handled(id(error))


def new_frame(code: CodeType, global_names: dict[str, Any], namespace: Any) -> FrameType:
    """A frame object of `code` that no C stack knows; `namespace` is None where locals are fast."""
    last = None if namespace is None else id(namespace)
    frame: FrameType = _new_frame(_thread_state(), id(code), id(global_names), last)
    frame.f_trace_lines = False  # how `without_own_entries` knows it
    return frame


def set_back(frame: FrameType, back: FrameType | None) -> None:
    """Let `frame.f_back` be `back`."""
    _own(ctypes.c_void_p.from_address(id(frame) + _FRAME_BACK), UNBOUND if back is None else back)


def set_instruction(frame: FrameType, offset: int) -> None:
    """Let `frame.f_lasti` be `offset`, a byte offset in the code; `f_lineno` follows."""
    pointer = ctypes.c_void_p.from_address(_data(frame) + _DATA_INSTRUCTION)
    now = frame.f_lasti
    pointer.value = (pointer.value or 0) - (now if now >= 0 else -2) + offset


def set_locals(frame: FrameType, values: Sequence[Any], start: int = 0) -> None:
    """Write `values` (cells for cell variables, UNBOUND for none) into the local slots from `start` on."""
    data = _data(frame)
    ctypes.c_int.from_address(data + _DATA_STACK_TOP).value = start + len(values)
    for index, value in enumerate(values, start):
        _own(ctypes.c_void_p.from_address(data + _DATA_LOCALS + index * _POINTER), value)


def type_version(kind: type) -> ctypes.c_uint:
    """A view of CPython's version of a type: its `value` changes when the type or a base does; 0 means unknown."""
    return ctypes.c_uint.from_address(id(kind) + _TYPE_VERSION)


def c_calls_left() -> ctypes.c_int:
    """A view of how much deeper 3.12 lets the C code of this thread call; another version has it elsewhere."""
    return ctypes.c_int.from_address(_thread_state() + _THREAD_C_CALLS)


def _data(frame: FrameType) -> int:
    """The address of the interpreter's half of a frame object."""
    return ctypes.c_void_p.from_address(id(frame) + _FRAME_DATA).value or 0


def _own(slot: ctypes.c_void_p, value: Any) -> None:
    """Store a counted reference to `value` in a C slot and drop the one that it held."""
    old = slot.value
    if value is UNBOUND:
        slot.value = None
    else:
        _increment(id(value))
        slot.value = id(value)
    if old:
        _decrement(old)


assert sys.implementation.name == "cpython" and _POINTER == 8
