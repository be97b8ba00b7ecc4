"""Access to CPython's C structures: set the handled exception, make a frame object, read a type's version.

Each name here is CPython's own, reached through `ctypes`. The offsets are those of the versions and builds that
`versions` lists; elsewhere nothing is read or written, and the first use of an offset is refused.
"""

import ctypes
import struct
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from thunder_core.frontend.interpreter.versions import HERE, Build, Version, require_supported

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
    # PyWeakReference and PyTypeObject
    referent: int = 2 * _POINTER
    type_version: int = 48 * _POINTER
    # PyThreadState, of 3.12 alone
    thread_c_calls: int = 36
    # A frame's slots are references with a tag since 3.14: the bits of an empty slot, and the tag of a borrowed object.
    # The top of its stack is an address there, and a count before.
    empty: int = 0
    borrowed: int = 0
    top_is_address: bool = False


class UnknownOffsets(Offsets):
    """The offsets of a Python that is not known: each use raises `PythonNotSupported`."""

    def __init__(self, version: Version, build: Build) -> None:
        object.__setattr__(self, "asked", (version, build))

    def __getattribute__(self, name: str) -> Any:
        require_supported(*object.__getattribute__(self, "asked"))
        return super().__getattribute__(name)


# One entry for each version whose bytecode is known; the first three agree.
OFFSETS: dict[Version, Offsets] = {
    (3, 11): Offsets(),
    (3, 12): Offsets(),
    (3, 13): Offsets(),
    (3, 14): Offsets(data_locals=10 * _POINTER, empty=1, borrowed=1, top_is_address=True),
}


def offsets_of(version: Version, build: Build) -> Offsets:
    """The offsets of a Python; of one that is not known, those whose use raises `PythonNotSupported`."""
    is_known = version in OFFSETS and not build.problem
    return OFFSETS[version] if is_known else UnknownOffsets(version, build)


_at = offsets_of(HERE, Build())

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
    return ctypes.py_object.from_address(id(proxy) + _at.referent).value


def is_proxy(value: Any) -> bool:
    """Whether a value is what `weakref.proxy` makes; its class is not asked, since its metaclass may be the user's."""
    kind = type(value)
    return kind is weakref.ProxyType or kind is weakref.CallableProxyType


def unwrapped(value: Any) -> Any:
    """The object that answers for a value: the one behind a weak proxy that is not gone, else the value itself."""
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
    _own(ctypes.c_void_p.from_address(id(frame) + _at.frame_back), UNBOUND if back is None else back)


def set_instruction(frame: FrameType, offset: int) -> None:
    """Let `frame.f_lasti` be `offset`, a byte offset in the code; `f_lineno` follows."""
    pointer = ctypes.c_void_p.from_address(_data(frame) + _at.data_instruction)
    now = frame.f_lasti
    pointer.value = (pointer.value or 0) - (now if now >= 0 else -2) + offset


def set_locals(frame: FrameType, values: Sequence[Any], start: int = 0) -> None:
    """Write `values` (cells for cell variables, UNBOUND for none) into the local slots from `start` on."""
    data = _data(frame)
    _set_stack_top(data, start + len(values))
    for index, value in enumerate(values, start):
        _own(ctypes.c_void_p.from_address(data + _at.data_locals + index * _POINTER), value, _at.empty, _at.borrowed)


def _set_stack_top(data: int, count: int) -> None:
    """Let a frame have so many slots in use."""
    if _at.top_is_address:
        ctypes.c_void_p.from_address(data + _at.data_stack_top).value = data + _at.data_locals + count * _POINTER
    else:
        ctypes.c_int.from_address(data + _at.data_stack_top).value = count


def type_version(kind: type) -> ctypes.c_uint:
    """A view of CPython's version of a type: its `value` changes when the type or a base does; 0 means unknown."""
    return ctypes.c_uint.from_address(id(kind) + _at.type_version)


def c_calls_left() -> ctypes.c_int:
    """A view of how much deeper 3.12 lets the C code of this thread call; another version has it elsewhere."""
    return ctypes.c_int.from_address(_thread_state() + _at.thread_c_calls)


def _data(frame: FrameType) -> int:
    """The address of the interpreter's half of a frame object."""
    return ctypes.c_void_p.from_address(id(frame) + _at.frame_data).value or 0


def _own(slot: ctypes.c_void_p, value: Any, empty: int = 0, borrowed: int = 0) -> None:
    """Store a counted reference to `value` in a C slot and drop the one that it held, unless the slot borrowed it."""
    old = slot.value or 0
    if value is UNBOUND:
        slot.value = empty
    else:
        _increment(id(value))
        slot.value = id(value)
    if old and not old & borrowed:
        _decrement(old)
