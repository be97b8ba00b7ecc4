"""Keys of values for the index of programs. They are made without running the user's code, and are only hints."""

from __future__ import annotations

import enum
import types
from collections.abc import Hashable
from typing import Any

import torch

from thunder_core.tracing.library.tensor_guards import BASE_TENSOR_CLASSES

MAX_KEYS = 16  # maximum keys of a dict, or items of a tuple, that distinguish it from others
VALUE_CLASSES = (type(None), bool, int, str, bytes, torch.dtype, torch.device, torch.layout, torch.Size)
# The identities of classes. A lookup by class would call `__hash__` of the metaclass, which may be the user's.
VALUE_CLASS_IDS = frozenset(map(id, VALUE_CLASSES))
TENSOR_CLASS_IDS = frozenset(map(id, BASE_TENSOR_CLASSES))
SIZED_CLASS_IDS = frozenset(map(id, (list, tuple, dict, set)))
# The classes of items by which tuples are distinguished.
TUPLE_ITEM_CLASS_IDS = VALUE_CLASS_IDS | {id(float), id(complex)}
CLASSES_COMPARED_BY_IDENTITY = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, enum.Enum)


def key_of(value: Any) -> Hashable:
    """Return a key that distinguishes a value from most others: the value, its items, its metadata or its length.

    No code of the user runs.
    """
    kind = type(value)
    if id(kind) in VALUE_CLASS_IDS:
        return kind, value
    if kind is float or kind is complex:
        return kind, repr(value)
    if id(kind) in TENSOR_CLASS_IDS and value.layout is torch.strided and not value.is_nested:
        return kind, value.dtype, value.shape, value.stride(), value.device, value.requires_grad
    if issubclass(kind, CLASSES_COMPARED_BY_IDENTITY):
        return id(kind), id(value)
    if kind is dict and len(value) <= MAX_KEYS and all(type(key) is str for key in value):
        return kind, tuple(value)
    if kind is tuple and len(value) <= MAX_KEYS and all(id(type(item)) in TUPLE_ITEM_CLASS_IDS for item in value):
        return kind, tuple(map(key_of, value))
    return id(kind), len(value) if id(kind) in SIZED_CLASS_IDS else 0


def quick_key_of(value: Any) -> Hashable:
    """Return a key in half the time of `key_of`; the key of a tensor is its shape, dtype and `requires_grad`."""
    return (value.shape, value.dtype, value.requires_grad) if id(type(value)) in TENSOR_CLASS_IDS else key_of(value)
