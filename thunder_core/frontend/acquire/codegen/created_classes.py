"""Classes that a program creates at each call, and that leave it: as a result, or as the class of an object."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from thunder_core.frontend.acquire.codegen.rebuilding import parts_of
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.ir.constants import is_constant
from thunder_core.tracing.library.changes.class_entries import dict_of, mro_of

FIX = "create the class outside of the compiled program, and keep computed values and containers in its instances"
CHANGEABLE = (list, dict, set, deque, bytearray)


def classes_with_state(constants: Iterable[object], is_created: Callable[[type], bool]) -> Iterator[type]:
    """Yield the classes among constants that the program creates, and whose namespaces have state of the call.

    The state is a computed value, or a container under a public name, which the user may change. An epilogue does not
    create a class again, so all calls would share the state of the traced call.
    """
    for value in constants:
        if issubclass(type(value), type) and is_created(value):  # type: ignore[arg-type]
            kinds = [kind for kind in mro_of(value) if is_created(kind)]  # type: ignore[arg-type]
            if any(is_state(name, entry) for kind in kinds for name, entry in dict_of(kind).items()):
                yield value  # type: ignore[misc]


def is_state(name: str, entry: object) -> bool:
    """Whether an entry of a class's namespace belongs to one call."""
    return is_computed(entry, set()) or (not name.startswith("_") and issubclass(type(entry), CHANGEABLE))


def is_computed(value: Any, seen: set[int]) -> bool:
    """Whether a value of a namespace is, or has as a part, a tensor or a symbolic number."""
    kind = type(value)  # not isinstance, which reads the value's own `__class__`
    if issubclass(kind, (torch.Tensor, SymbolicNumber)):
        return True
    if id(value) in seen or (kind is not types.FunctionType and is_constant(value)):
        return False
    seen.add(id(value))
    if kind in (staticmethod, classmethod):
        return is_computed(value.__func__, seen)
    if kind is property:
        return any(is_computed(function, seen) for function in (value.fget, value.fset, value.fdel))
    return any(is_computed(part, seen) for part in parts_of(value))
