"""Keys that distinguish values for the index of programs: hints, made without running the user's code."""

from __future__ import annotations

import enum
import types
from collections.abc import Hashable
from typing import Any

import torch

from thunder_core.tracing.library.tensor_guards import PLAIN

MAX_KEYS = 16  # maximum keys of a dict, or items of a tuple, that distinguish it from others
VALUES = (type(None), bool, int, str, bytes, torch.dtype, torch.device, torch.layout, torch.Size)
# Classes by their identities: a lookup by class would call the metaclass, which may be the user's.
OF_VALUES = frozenset(map(id, VALUES))
OF_TENSORS = frozenset(map(id, PLAIN))
OF_SIZED = frozenset(map(id, (list, tuple, dict, set)))
OF_PARTS = OF_VALUES | {id(float), id(complex)}  # items of tuples that are distinguished by their items
BY_IDENTITY = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, enum.Enum)


def key_of(value: Any) -> Hashable:
    """Return a key that distinguishes a value from most others.

    The key has the value, the items, the metadata or the length, and is made without running the user's code.
    """
    kind = type(value)
    if id(kind) in OF_VALUES:
        return kind, value
    if kind is float or kind is complex:
        return kind, repr(value)
    if id(kind) in OF_TENSORS and value.layout is torch.strided and not value.is_nested:
        return kind, value.dtype, value.shape, value.stride(), value.device, value.requires_grad
    if issubclass(kind, BY_IDENTITY):
        return id(kind), id(value)
    if kind is dict and len(value) <= MAX_KEYS and all(type(key) is str for key in value):
        return kind, tuple(value)
    if kind is tuple and len(value) <= MAX_KEYS and all(id(type(item)) in OF_PARTS for item in value):
        return kind, tuple(map(key_of, value))
    return id(kind), len(value) if id(kind) in OF_SIZED else 0


def quick_key_of(value: Any) -> Hashable:
    """Return a key in half the time: tensors are distinguished by shape, dtype and `requires_grad` only."""
    return (value.shape, value.dtype, value.requires_grad) if id(type(value)) in OF_TENSORS else key_of(value)
