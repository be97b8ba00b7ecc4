"""Constants: values that are known by their equality or identity alone, in Python source and in words."""

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
CONSTANT_TYPES = frozenset({*SINGLETONS, *VALUES})
# Values of parts, which are constants where all parts are: those of a size are numbers, those of a slice anything.
PARTS: dict[type, Callable[[Any], Iterable[Any]]] = {
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


def is_constant(value: Any) -> bool:
    """Whether a value is immutable and known by its equality or identity alone."""
    kind = type(value)  # not isinstance, which asks the value's own `__class__`, and a config runs Python code for it
    if kind in PARTS:
        return all(map(is_constant, PARTS[kind](value)))
    return kind in CONSTANT_TYPES or issubclass(kind, enum.Enum)


def is_plain(value: Any) -> bool:
    """Whether a value is a constant, or consists of constants and nothing else."""
    return is_constant(value) or (type(value) in (tuple, frozenset) and all(map(is_plain, value)))


def bound(value: Any, scope: Scope) -> str:
    """A function, class or module as a constant: its dotted name would find whatever replaced it."""
    if not isinstance(value, BY_IDENTITY) or (isinstance(value, type) and value.__module__ == "builtins"):
        return literal(value, scope)
    return scope.constant(value, getattr(value, "__name__", "constant"))


def named(value: object) -> str:
    """An object by its name; by its type where its text would have an address, another one in each process."""
    if isinstance(value, SINGLETONS):
        return str(value)
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else f"one certain {type(value).__name__}"
