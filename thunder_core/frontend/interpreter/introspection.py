"""Reads of attributes of frame objects, generators and `super` objects, which show the program's interpreted state."""

import sys
from collections.abc import Callable
from types import AsyncGeneratorType, CoroutineType, FrameType, FunctionType, GeneratorType
from typing import Any

from thunder_core.frontend.interpreter.frame import Frame, Machine
from thunder_core.frontend.interpreter.generators import frame_of, user_code
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.tracing.library.changes.class_entries import ABSENT

Reader = Callable[[Machine, Any, str], Any]
PythonCall = tuple[Any, tuple[Any, ...]]  # a Python function and its first arguments

# By type: the function that reads the attributes of its instances. The C getters would return the frames of drivers.
ATTRIBUTE_READERS: dict[type, Reader] = {}


def _reads_attributes_of(
    *kinds: type,
) -> Callable[[Callable[[Machine, Any, str], Any]], Callable[[Machine, Any, str], Any]]:
    """Register a function that reads attributes of instances of these types."""

    def register(reader: Callable[[Machine, Any, str], Any]) -> Callable[[Machine, Any, str], Any]:
        ATTRIBUTE_READERS.update(dict.fromkeys(kinds, reader))
        return reader

    return register


@_reads_attributes_of(FrameType)
def _read_frame_attribute(machine: Machine, owner: FrameType, name: str) -> Any:
    """Read an attribute of a frame object, after updating the frame object if it represents a running frame."""
    innermost = machine.frame
    if innermost is not None:
        for frame in (innermost, *innermost.callers()):
            if frame.native_frame is owner:
                if name == "f_locals":
                    return locals_of(frame)
                innermost.publish()
                break
    return getattr(owner, name)


@_reads_attributes_of(GeneratorType, CoroutineType, AsyncGeneratorType)
def _read_generator_attribute(_machine: Machine, owner: object, name: str) -> Any:
    """Read an attribute of a generator or coroutine. Its frame and code are the program's, not the driver's."""
    value = getattr(owner, name)
    if name in ("gi_code", "cr_code", "ag_code"):
        return user_code(value)
    if name in ("gi_frame", "cr_frame", "ag_frame") and value is not None:
        frame = frame_of(owner)
        return value if frame is None else frame.inspect()
    return value


@_reads_attributes_of(super)
def _read_super_attribute(machine: Machine, owner: object, name: str) -> Any:
    """Read `super().name`, with getters in Python interpreted."""
    unbound, instance, kind = _find_in_super(owner, name)
    call = None if instance is None else property_getter(unbound, instance)
    if call is not None:
        return machine.invoke(*call, {})
    getter = ABSENT if unbound is ABSENT else type_lookup(type(unbound), "__get__")
    if type(getter) is FunctionType:
        return machine.invoke(getter, (unbound, instance, kind), {})
    return getattr(owner, name)


def property_getter(unbound: object, owner: object) -> PythonCall | None:
    """Return the getter of a property, or of an instance of a subclass that inherits `property.__get__`."""
    if isinstance(unbound, property) and type_lookup(type(unbound), "__get__") is property.__dict__["__get__"]:
        function = property.__dict__["fget"].__get__(unbound)
        return None if function is None else (function, (owner,))
    return None


def _find_in_super(owner: object, name: str) -> tuple[Any, Any, Any]:
    """Return the unbound attribute that `super` finds, the instance to bind it to (None for a class) and its type."""
    get = super.__getattribute__
    this, instance, kind = (get(owner, own) for own in ("__thisclass__", "__self__", "__self_class__"))
    if kind is None or name == "__class__":
        return ABSENT, None, None
    bases = type.__dict__["__mro__"].__get__(kind)
    for base in bases[bases.index(this) + 1 :]:
        names = type.__dict__["__dict__"].__get__(base)
        if name in names:
            return names[name], None if instance is kind else instance, kind
    return ABSENT, None, None


def locals_of(frame: Frame) -> Any:
    """Return the result of `locals()` in a frame: the namespace or, in functions, a dictionary.

    Since 3.13, each call in a function returns a new dictionary.
    """
    if frame.names is not None:
        hidden = _hidden_names(frame)
        return {**frame.names, **hidden} if hidden else frame.names
    if frame.snapshot is None or sys.version_info >= (3, 13):
        frame.snapshot = {}
    bound = frame.bound_locals()
    for name in frame.program.names:
        if name in bound:
            frame.snapshot[name] = bound[name]
        else:
            frame.snapshot.pop(name, None)
    return frame.snapshot


def _hidden_names(frame: Frame) -> dict[str, Any]:
    """Return the variables of comprehensions that were inlined into a class body or module."""
    if not frame.code.co_varnames:
        return {}
    bound = frame.bound_locals()
    return {name: bound[name] for name in frame.code.co_varnames if name in bound}
