"""Constants: values that are compared by equality or identity, their Python source, and their description."""

from __future__ import annotations

import enum
import operator
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

from thunder_core.tracing.ir.literal import Scope, literal

SINGLETONS = (type(None), bool, torch.dtype, torch.layout, torch.memory_format, type(...), type(NotImplemented))
VALUES = (int, float, str, bytes, complex, torch.device, torch.Size, slice, range)
LITERALS = frozenset({type(None), bool, int, float, complex, str, bytes})
CONSTANT_TYPES = frozenset({*SINGLETONS, *VALUES})
# Types whose values are constants if all their parts are constants, and functions that return the parts.
CONSTANT_CONTAINERS: dict[type, Callable[[Any], Iterable[Any]]] = {
    torch.Size: tuple,
    slice: lambda value: (value.start, value.stop, value.step),
}
BY_IDENTITY = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.ModuleType,
    types.MethodWrapperType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    operator.itemgetter,
    operator.attrgetter,
    operator.methodcaller,
    property,
    classmethod,
    OpOverload,
    OpOverloadPacket,
)


def is_constant(value: object) -> bool:
    """Whether a value is immutable and compared by equality or identity."""
    kind = type(value)  # `isinstance` would read `__class__`, which runs Python code for a transformers config
    if kind in CONSTANT_CONTAINERS:
        return all(map(is_constant, CONSTANT_CONTAINERS[kind](value)))
    return kind in CONSTANT_TYPES or issubclass(kind, enum.Enum)


def is_literal(value: object) -> bool:
    """Whether a value is None, a number, a string, or a tuple of such values."""
    return type(value) in LITERALS or (type(value) is tuple and all(map(is_literal, value)))


def is_plain(value: Any) -> bool:
    """Whether a value is a constant, or a tuple or frozenset of plain values."""
    return is_constant(value) or (type(value) in (tuple, frozenset) and all(map(is_plain, value)))


def bind_constant(value: object, scope: Scope) -> str:
    """Bind a function, class or module as a constant, and return its name; a dotted name could be reassigned later."""
    if not isinstance(value, BY_IDENTITY) or (isinstance(value, type) and value.__module__ == "builtins"):
        return literal(value, scope)
    return scope.constant(value, getattr(value, "__name__", "constant"))


def name_of(value: object) -> str:
    """Return an object's `__name__`; without one, return `a specific TYPE`, because a `repr` may contain an address."""
    if isinstance(value, SINGLETONS):
        return str(value)
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else f"a specific {type(value).__name__}"
