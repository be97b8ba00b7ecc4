"""Objects that an epilogue rebuilds: their parts, and the classes that can be rebuilt."""

from __future__ import annotations

import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.frontend.acquire.outside.namespaces import NESTING, values_of
from thunder_core.frontend.acquire.outside.reductions import is_bound_in_c
from thunder_core.frontend.interpreter.callables import callable_attribute
from thunder_core.tracing.capture.fakes.fake import new_mode
from thunder_core.tracing.ir.constants import BY_IDENTITY, CONSTANT_CONTAINERS
from thunder_core.tracing.ir.literal import dotted_name
from thunder_core.tracing.ir.stored_attributes import attributes_of
from thunder_core.tracing.library.changes.class_entries import dict_of, mro_of
from thunder_core.tracing.library.objects import is_native

# Beginnings of the names of attributes that PyTorch itself sets on fakes.
MEMO_PREFIXES = ("_nonzero_memo", "_item_memo", "_unique_memo", "_unique_consecutive_memo", "_nested_int_memo")
# Ends of the names of attributes in which C++ code stores sizes and strides.
CAPSULE_SUFFIXES = ("_sizes_capsule", "_sizes_capsule_len", "_strides_capsule", "_strides_capsule_len")
C_DESCRIPTORS = (types.MethodDescriptorType, types.WrapperDescriptorType)
REBUILT_BASES = (dict, list, set, object, OrderedDict, defaultdict, deque)


@cache
def attributes_of_fakes() -> frozenset[str]:
    """Return the names of the attributes that PyTorch sets on every fake tensor.

    The result is cached, because making a fake imports Dynamo, which takes a second. A program that is traced does not
    record the fake.
    """
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        return frozenset(vars(new_mode().from_tensor(torch.empty(0))))


def parts_of(value: Any) -> list[Any]:
    """Return the parts from which an object is rebuilt: its items, its attributes and its closure."""
    kind = type(value)  # not isinstance, which reads the value's own `__class__`
    if issubclass(kind, torch.Tensor):
        return [*attributes_of_tensor(value).values()]
    if issubclass(kind, types.FunctionType):
        has_name = dotted_name(value) is not None
        return [] if has_name else [value.__defaults__, value.__kwdefaults__, *(value.__closure__ or ())]
    if kind is types.CellType:
        return [] if value == types.CellType() else [value.cell_contents]
    if kind is types.MethodType:
        return [value.__self__, *([value.__func__] if name_of_method(value) is None else [])]
    if is_bound_in_c(value):
        return [value.__self__]
    if issubclass(kind, BY_IDENTITY):
        return []
    if kind in CONSTANT_CONTAINERS:
        return [*CONSTANT_CONTAINERS[kind](value)]
    keys = dict.keys(value) if issubclass(kind, dict) else ()
    items = values_of(value) if issubclass(kind, NESTING) else ()
    return [*keys, *items, *attributes_of(value).values()]


def name_of_method(method: Any) -> str | None:
    """Return the name of the attribute of the object whose value is this bound method; None if there is none."""
    if not isinstance(method, types.MethodType):
        name: str = method.__name__
        return name
    owner, function = method.__self__, method.__func__
    first = callable_attribute(function, "__name__")
    for kind in (owner, type(owner)) if isinstance(owner, type) else (type(owner),):
        entries = {name: entry for base in reversed(mro_of(kind)) for name, entry in dict_of(base).items()}
        if kind is owner:  # a class binds its class methods, and an object its functions
            entries = {name: entry.__func__ for name, entry in entries.items() if isinstance(entry, classmethod)}
        names = [name for name, entry in entries.items() if entry is function]
        if names:
            chosen = first if first in names else names[0]
            if isinstance(owner, type):
                is_shadowed = kind is not owner and any(chosen in dict_of(base) for base in mro_of(owner))
            else:
                is_shadowed = chosen in getattr(owner, "__dict__", {})
            return None if is_shadowed else chosen
    return None


def class_of_hidden_method(method: Any) -> type | None:
    """Return the class of a C method that its object hides by another attribute of this name; None for others."""
    owner, name = method.__self__, method.__name__
    classes = [kind for kind in mro_of(type(owner)) if name in dict_of(kind)]
    entries = [(kind, dict_of(kind)[name]) for kind in classes]
    owning = next(
        (
            kind
            for kind, entry in entries
            if type(entry) in C_DESCRIPTORS and entry.__get__(owner, type(owner)) == method
        ),
        None,
    )
    is_hidden = owning is not None and (owning is not classes[0] or name in getattr(owner, "__dict__", {}))
    return owning if is_hidden else None


def is_rebuildable(kind: type) -> bool:
    """Whether an instance consists only of items and attributes, with no other state in C."""
    return all(base in REBUILT_BASES for base in kind.__mro__ if is_native(base))


def attributes_of_tensor(tensor: torch.Tensor) -> Mapping[str, Any]:
    """Return the attributes of a tensor that the program has set, with their values."""
    state = vars(tensor)
    return {
        name: state[name]
        for name in state
        if name not in attributes_of_fakes()
        and not name.startswith(MEMO_PREFIXES)
        and not name.endswith(CAPSULE_SUFFIXES)
    }
