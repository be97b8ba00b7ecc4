"""Containers of C: which methods change them, at the level of which class these are C's, and how they are put back."""

from __future__ import annotations

import bisect
import collections
import heapq
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from thunder_core.frontend.interpreter.lookup import dict_of, mro_of, type_lookup

# Methods of builtin containers that change them; all others only read.
IN_PLACE = ("__setitem__", "__delitem__", "__iadd__", "__imul__", "__ior__", "__iand__", "__isub__", "__ixor__")
GROW = ("append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault")
SHRINK = ("pop", "popleft", "popitem", "remove", "discard", "clear")
REARRANGE = ("reverse", "sort", "rotate", "move_to_end")
UPDATES = ("difference_update", "intersection_update", "symmetric_difference_update")
MUTATORS = frozenset((*IN_PLACE, *GROW, *SHRINK, *REARRANGE, *UPDATES))
# Those of them that do the same whatever the container holds; `__setitem__` does so for mappings.
BLIND = frozenset(
    {"append", "appendleft", "extend", "extendleft", "add", "update", "discard", "clear", "__iadd__", "__ior__"}
)
# Those of them that take over the items of what they are given, which may change later, or can be gone through once.
TAKING = frozenset({"extend", "extendleft", "update", *IN_PLACE[2:], *UPDATES}) - {"__imul__"}
CONTAINERS = (list, dict, set, collections.deque)
LASTING = (str, bytes, tuple, frozenset, range, int)  # of what is given, what neither changes nor is used up

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
# C functions that change the list that they are given first.
CHANGING: frozenset[Callable[..., Any]] = frozenset(
    {*(getattr(heapq, name) for name in _HEAP if hasattr(heapq, name)), bisect.insort_left, bisect.insort_right}
)


def container_base(value: Any) -> Any:
    """The builtin mutable container that a value is, if it is one."""
    kind = type(value)  # not isinstance, which asks the value's own `__class__`
    return next((base for base in CONTAINERS if issubclass(kind, base)), None)


def mapping_base(container: dict[Any, Any]) -> Any:
    """The class whose methods see a mapping's items as they are stored, whatever its own class overrides."""
    return collections.OrderedDict if isinstance(container, collections.OrderedDict) else dict


def plain_copy(value: Any) -> Any:
    """A container's items in a builtin container of the same kind, past all that its own class overrides."""
    if isinstance(value, dict):
        base = mapping_base(value)
        return base(base.items(value))
    base = container_base(value)
    return base(base.__iter__(value))


def put_back(value: Any, original: Any) -> None:
    """Give a container the items that its plain copy has."""
    base = type(original)
    base.clear(value)
    if base in (list, collections.deque):
        base.extend(value, original)
    elif base is set:
        set.update(value, original)
    else:
        for key, item in original.items():
            base.__setitem__(value, key, item)


def is_known_key(key: Any) -> bool:
    """Whether a key is equal to others by its value or its identity alone, so that no code of the user's decides."""
    return type(key) in (str, int, bytes, bool, float) or is_known_by_identity(key)


def is_known_item(container: Any, key: Any) -> bool:
    """Whether which item of a container of C's is meant is known by the key alone, past what `__index__` gives."""
    return is_known_key(key) and (isinstance(container, dict) or type(key) is int)


def is_known_by_identity(value: Any) -> bool:
    """Whether an object is equal to itself alone, in a mapping or a set, or is a weak reference to one that is."""
    kind = type(value)
    if issubclass(kind, weakref.ref):
        referent = weakref.ref.__call__(value)
        return referent is not None and is_known_by_identity(referent)
    if issubclass(kind, torch.Tensor):
        return True
    return type_lookup(kind, "__eq__") is object.__eq__ and type_lookup(kind, "__hash__") is object.__hash__


def index_of(container: Any, key: Any) -> Any:
    """The key of an item; an index is counted from the beginning."""
    counted = isinstance(container, list | tuple) and type(key) is int and -len(container) <= key < 0
    return key + len(container) if counted else key


def level_of(kind: type, name: str) -> type | None:
    """The class whose C method instances of a type override in Python; None where they have the C method itself."""
    if not isinstance(type_lookup(kind, name), types.FunctionType):
        return None
    bases = (base for base in mro_of(kind) if name in dict_of(base))
    return next((base for base in bases if not isinstance(dict_of(base)[name], types.FunctionType)), None)


def kept_arguments(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a container's method, copied where it takes over the items of something mutable."""
    if name == "__setitem__" and isinstance(arguments[0], slice):
        return arguments[0], _as_now(arguments[1])
    return tuple(map(_as_now, arguments)) if name in TAKING else arguments


def _as_now(argument: Any) -> Any:
    return argument if container_base(argument) is None else plain_copy(argument)


def is_used_up(name: str, argument: Any) -> bool:
    """Whether a method of a container goes through something that cannot be gone through again: an iterator, a view."""
    if name not in TAKING or container_base(argument) is not None or isinstance(argument, LASTING):
        return False
    return isinstance(argument, Iterable)


def receiver(function: Any, args: tuple[Any, ...]) -> tuple[Any, str, tuple[Any, ...], type | None]:
    """The object that a C method is called on, its name and its other arguments; the class, where it was named.

    `list.append(items, x)` is called on `items`, as is `super().append(x)`.
    """
    name = getattr(function, "__name__", "")
    if type(function) in UNBOUND and args and container_base(args[0]) is not None:
        owner, level = args[0], function.__objclass__
        return owner, name, args[1:], None if type_lookup(type(owner), name) is function else level
    return getattr(function, "__self__", None), name, args, None


def is_changing(function: Any) -> bool:
    """Whether a C function changes the container that it is given first."""
    try:
        return function in CHANGING
    except TypeError:  # an unhashable callable
        return False


def taken_as(argument: Any) -> type:
    """The kind of container in which the items of what a container is given are kept: for a mapping, its pairs."""
    return dict if hasattr(type(argument), "keys") else list
