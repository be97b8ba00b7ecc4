"""Built-in containers: the methods that change them, the class level at which the methods are in C, and restoring."""

from __future__ import annotations

import bisect
import collections
import heapq
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from thunder_core.frontend.acquire.outside.namespaces import is_index_into, length_of
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.tracing.library.changes.class_entries import dict_of, mro_of

# Methods of builtin containers that change them; all others only read.
IN_PLACE = ("__setitem__", "__delitem__", "__iadd__", "__imul__", "__ior__", "__iand__", "__isub__", "__ixor__")
GROW = ("append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault")
SHRINK = ("pop", "popleft", "popitem", "remove", "discard", "clear")
REARRANGE = ("reverse", "sort", "rotate", "move_to_end")
UPDATES = ("difference_update", "intersection_update", "symmetric_difference_update")
MUTATORS = frozenset((*IN_PLACE, *GROW, *SHRINK, *REARRANGE, *UPDATES))
# Methods among these with the same effect for all contents; for mappings, also `__setitem__`.
BLIND = frozenset(
    {"append", "appendleft", "extend", "extendleft", "add", "update", "discard", "clear", "__iadd__", "__ior__"}
)
# Methods among these that copy the items of an argument, which may change later, or can be iterated only once.
TAKING = frozenset({"extend", "extendleft", "update", *IN_PLACE[2:], *UPDATES}) - {"__imul__"}
CONTAINERS = (list, dict, set, collections.deque)
LASTING = (str, bytes, tuple, frozenset, range, int)  # types of arguments that neither change nor are used up

UNBOUND = (types.MethodDescriptorType, types.WrapperDescriptorType)
_HEAP = (
    "heapify",
    "heappush",
    "heappop",
    "heapreplace",
    "heappushpop",
    "_heapify_max",
    "_heappop_max",
    "_heapreplace_max",
)
# C functions that change the list in their first argument.
CHANGING: frozenset[Callable[..., Any]] = frozenset(
    {*(getattr(heapq, name) for name in _HEAP if hasattr(heapq, name)), bisect.insort_left, bisect.insort_right}
)


def container_base(value: object) -> Any:
    """Return the mutable built-in container class that a value is an instance of, or None."""
    kind = type(value)  # not isinstance, which reads the value's own `__class__`
    return next((base for base in CONTAINERS if issubclass(kind, base)), None)


def mapping_base(container: dict[Any, Any]) -> Any:
    """Return the built-in class whose methods read a mapping's stored items, bypassing overrides."""
    return collections.OrderedDict if issubclass(type(container), collections.OrderedDict) else dict


def plain_copy(value: Any) -> Any:
    """Copy a container's items to a container of its built-in class, bypassing overrides."""
    if issubclass(type(value), dict):
        base = mapping_base(value)
        return base(base.items(value))
    base = container_base(value)
    return base(base.__iter__(value))


def put_back(value: Any, original: Any) -> None:
    """Restore a container's items from its plain copy."""
    base = type(original)
    base.clear(value)
    if base in (list, collections.deque):
        base.extend(value, original)
    elif base is set:
        set.update(value, original)
    else:
        for key, item in original.items():
            base.__setitem__(value, key, item)


def is_known_key(key: object) -> bool:
    """Whether equality of a key depends only on its value or identity, so that no code of the user decides."""
    return type(key) in (str, int, bytes, bool, float) or is_known_by_identity(key)


def is_known_item(container: object, key: object) -> bool:
    """Whether the key alone determines an item of a built-in container, without calling `__index__`."""
    return is_known_key(key) and (issubclass(type(container), dict) or type(key) is int)


def is_known_by_identity(value: Any) -> bool:
    """Whether an object equals only itself in a mapping or a set, or is a weak reference to such an object."""
    kind = type(value)
    if issubclass(kind, weakref.ref):
        referent = weakref.ref.__call__(value)
        return referent is not None and is_known_by_identity(referent)
    if issubclass(kind, torch.Tensor):
        return True
    return type_lookup(kind, "__eq__") is object.__eq__ and type_lookup(kind, "__hash__") is object.__hash__


def index_of(container: Any, key: Any) -> Any:
    """Return a key, or the equal non-negative index for a valid negative index of a list or tuple."""
    return key + length_of(container) if is_index_into(container, key) and key < 0 else key


def level_of(kind: type, name: str) -> type | None:
    """Return the class whose C method is overridden in Python by a type's classes; None if it is not overridden."""
    if not isinstance(type_lookup(kind, name), types.FunctionType):
        return None
    bases = (base for base in mro_of(kind) if name in dict_of(base))
    return next((base for base in bases if not isinstance(dict_of(base)[name], types.FunctionType)), None)


def kept_arguments(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a container's method, with mutable containers copied if the method copies their items."""
    if name == "__setitem__" and isinstance(arguments[0], slice):
        return arguments[0], _as_now(arguments[1])
    return tuple(map(_as_now, arguments)) if name in TAKING else arguments


def _as_now(argument: object) -> Any:
    return argument if container_base(argument) is None else plain_copy(argument)


def is_used_up(name: str, argument: object) -> bool:
    """Whether a method consumes an argument that can be iterated only once, or that is a view."""
    if name not in TAKING or container_base(argument) is not None or isinstance(argument, LASTING):
        return False
    return isinstance(argument, Iterable)


def receiver(function: Any, args: tuple[Any, ...]) -> tuple[Any, str, tuple[Any, ...], type | None]:
    """Return the object of a C method call, the method's name, its other arguments, and the class if it is named.

    `list.append(items, x)` is called on `items`, as is `super().append(x)`.
    """
    name = getattr(function, "__name__", "")
    if type(function) in UNBOUND and args and container_base(args[0]) is not None:
        owner, level = args[0], function.__objclass__
        return owner, name, args[1:], None if type_lookup(type(owner), name) is function else level
    return getattr(function, "__self__", None), name, args, None


def is_changing(function: object) -> bool:
    """Whether a C function changes the container in its first argument."""
    try:
        return function in CHANGING
    except TypeError:  # an unhashable callable
        return False


def container_type(argument: object) -> type:
    """Return the container type to keep an argument's items in: dict for the pairs of a mapping, otherwise list."""
    return dict if hasattr(type(argument), "keys") else list


def size_of_list_or_set(owner: object) -> int | None:
    """Return the number of items of a list or set, bypassing `__len__` of its class; None for other objects."""
    base = container_base(owner)
    return base.__len__(owner) if base in (list, set) else None
