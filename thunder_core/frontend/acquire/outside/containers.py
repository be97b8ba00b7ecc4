"""Mutable built-in containers: the methods that change them, copies of their items, and calls of their methods."""

from __future__ import annotations

import bisect
import collections
import heapq
import operator
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from thunder_core.frontend.acquire.outside.namespaces import is_index_into, length_of, stored_class
from thunder_core.frontend.interpreter.callables import callable_attribute, callable_name
from thunder_core.frontend.interpreter.lookup import python_method, type_lookup
from thunder_core.frontend.interpreter.reach import stored_keys
from thunder_core.tracing.library.changes.class_entries import dict_of, mro_of

# Methods of builtin containers that change them. All other methods only read.
IN_PLACE_OPERATORS = (
    "__setitem__",
    "__delitem__",
    "__iadd__",
    "__imul__",
    "__ior__",
    "__iand__",
    "__isub__",
    "__ixor__",
)
GROWING_METHODS = ("append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault")
SHRINKING_METHODS = ("pop", "popleft", "popitem", "remove", "discard", "clear")
REARRANGING_METHODS = ("reverse", "sort", "rotate", "move_to_end")
SET_UPDATES = ("difference_update", "intersection_update", "symmetric_difference_update")
MUTATING_METHODS = frozenset(
    (*IN_PLACE_OPERATORS, *GROWING_METHODS, *SHRINKING_METHODS, *REARRANGING_METHODS, *SET_UPDATES)
)
# Mutating methods whose effect does not depend on the contents, so that a call needs no guard on the contents. For
# mappings, `__setitem__` is such a method, too.
METHODS_INDEPENDENT_OF_CONTENTS = frozenset(
    {"append", "appendleft", "extend", "extendleft", "add", "update", "discard", "clear", "__iadd__", "__ior__"}
)
# Mutating methods that copy the items of an argument. The argument may change later, or may be an iterator.
METHODS_COPYING_ARGUMENTS = frozenset({"extend", "extendleft", "update", *IN_PLACE_OPERATORS[2:], *SET_UPDATES}) - {
    "__imul__"
}
SET_METHODS = frozenset({"update", "__ior__", "__iand__", "__isub__", "__ixor__", *SET_UPDATES})  # bypass overrides
CONTAINERS = (list, dict, set, collections.deque)
METHODS_OF_STATEMENTS = frozenset({"__setattr__", "__delattr__"})  # the epilogue emits `x.name = value`, `del x.name`
IMMUTABLE_ARGUMENTS = (str, bytes, tuple, frozenset, range, int)  # classes of arguments that need no copy

UNBOUND_METHOD_CLASSES = (types.MethodDescriptorType, types.WrapperDescriptorType)
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
FUNCTIONS_CHANGING_LISTS: frozenset[Callable[..., Any]] = frozenset(
    {
        *(getattr(heapq, name) for name in _HEAP if hasattr(heapq, name)),
        *(bisect.insort_left, bisect.insort_right, operator.iconcat),
    }
)


def container_base(value: object) -> Any:
    """Return the mutable built-in container class that a value is an instance of, or None."""
    kind = type(value)  # not isinstance, which reads the value's own `__class__`
    return next((base for base in CONTAINERS if issubclass(kind, base)), None)


def mapping_base(container: dict[Any, Any]) -> Any:
    """Return the built-in class of a mapping: `OrderedDict` or `dict`. Its methods bypass overrides of a subclass."""
    return collections.OrderedDict if issubclass(type(container), collections.OrderedDict) else dict


def plain_copy(value: Any) -> Any:
    """Return a container of the built-in class with the items of a container, bypassing overrides of a subclass."""
    if issubclass(type(value), dict):
        base = mapping_base(value)
        return base(base.items(value))
    base = container_base(value)
    return base(base.__iter__(value))


def restore_items(value: Any, original: Any) -> None:
    """Restore the items of a container from its plain copy."""
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
    """Whether comparing a key runs no code of the user: equality of the key depends only on its value or identity."""
    return type(key) in (str, int, bytes, bool, float) or is_known_by_identity(key)


def is_known_item(container: object, key: object) -> bool:
    """Whether looking up a key in a built-in container runs no code of the user, such as `__eq__` or `__index__`."""
    if not is_known_key(key):
        return False
    return not compares_in_python(container) if issubclass(type(container), dict) else type(key) is int


def compares_in_python(container: Any) -> bool:
    """Whether a lookup in a mapping or a set may call a Python `__eq__` of a stored key."""
    return any(map(_has_python_equality, stored_keys(container)))


def _has_python_equality(key: Any) -> bool:
    """Whether comparing a stored key may call a Python `__eq__`, also of an item or of the object of a reference."""
    kind = type(key)
    if issubclass(kind, tuple | frozenset):
        return any(map(_has_python_equality, stored_class(key).__iter__(key)))
    if issubclass(kind, weakref.ref):
        return _has_python_equality(weakref.ref.__call__(key))
    return python_method(kind, "__eq__") is not None


def is_known_by_identity(value: Any) -> bool:
    """Whether a mapping or a set compares an object by identity, or the object of a weak reference."""
    kind = type(value)
    if issubclass(kind, weakref.ref):
        referent = weakref.ref.__call__(value)
        return referent is not None and is_known_by_identity(referent)
    if issubclass(kind, torch.Tensor):
        return True
    return type_lookup(kind, "__eq__") is object.__eq__ and type_lookup(kind, "__hash__") is object.__hash__


def hashes_in_python(key: object) -> bool:
    """Whether a Python function computes the hash of a key, so that a guard must not look the key up."""
    return not is_known_by_identity(key) and python_method(type(key), "__hash__") is not None


def index_of(container: Any, key: Any) -> Any:
    """Return the key, or `len(container) + key` for a valid negative index of a list or tuple."""
    return key + length_of(container) if is_index_into(container, key) and key < 0 else key


def overridden_c_class(kind: type, name: str) -> type | None:
    """Return the base class whose C method of this name a Python method of `kind` overrides.

    Return None if the method is not overridden. For a subclass of `list` with its own `append`, the result is `list`.
    A `__getattribute__` in Python counts as an overriding method, because reading the method runs it.
    """
    reads_method = name not in METHODS_OF_STATEMENTS
    is_overridden = python_method(kind, name) or (reads_method and python_method(kind, "__getattribute__"))
    if not is_overridden:
        return None
    bases = (base for base in mro_of(kind) if name in dict_of(base))
    return next((base for base in bases if not isinstance(dict_of(base)[name], types.FunctionType)), None)


def copy_mutable_arguments(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments of a method, with copies of mutable containers if the method copies their items."""
    if name == "__setitem__" and isinstance(arguments[0], slice):
        return arguments[0], _copy_if_mutable(arguments[1])
    return tuple(map(_copy_if_mutable, arguments)) if name in METHODS_COPYING_ARGUMENTS else arguments


def _copy_if_mutable(argument: object) -> Any:
    """Return a plain copy of a mutable container, and any other argument itself."""
    return argument if container_base(argument) is None else plain_copy(argument)


def is_consumed(name: str, argument: object) -> bool:
    """Whether a method reads the items of an argument that is an iterator, or a view such as `mapping.keys()`.

    A container whose class overrides the iteration in Python is read as an iterator, too.
    """
    if name not in METHODS_COPYING_ARGUMENTS:
        return False
    if iterates_in_python(argument) and not (issubclass(type(argument), set | frozenset) and name in SET_METHODS):
        return True
    if container_base(argument) is not None or isinstance(argument, IMMUTABLE_ARGUMENTS):
        return False
    return isinstance(argument, Iterable)


def iterates_in_python(argument: object) -> bool:
    """Whether an argument is a built-in container whose own class overrides `__iter__` in Python."""
    is_overridden = isinstance(type_lookup(type(argument), "__iter__"), types.FunctionType)
    return is_overridden and issubclass(type(argument), (*CONTAINERS, tuple, frozenset))


def split_method_call(function: Any, args: tuple[Any, ...]) -> tuple[Any, str, tuple[Any, ...], type | None]:
    """Split a call of a C method: return the owner, the method's name, the other arguments, and the overridden class.

    `items.append(x)` and `list.append(items, x)` both become `items, "append", (x,)`. The overridden class is the class
    of the called method (`list`) if the owner's class overrides the method, and otherwise None.
    """
    name = callable_name(function)
    if type(function) in UNBOUND_METHOD_CLASSES and args and container_base(args[0]) is not None:
        owner, c_class = args[0], function.__objclass__
        return owner, name, args[1:], None if type_lookup(type(owner), name) is function else c_class
    owner = (
        function.__self__ if type(function) is types.BuiltinFunctionType else callable_attribute(function, "__self__")
    )
    return owner, name, args, None


def can_change_first_argument(function: object) -> bool:
    """Whether a C function changes the list in its first argument."""
    try:
        return function in FUNCTIONS_CHANGING_LISTS
    except TypeError:  # an unhashable callable
        return False


def container_type(argument: object) -> type:
    """Return the class of a copy of an argument's items: `dict` for an argument with `keys`, otherwise `list`."""
    return dict if hasattr(type(argument), "keys") else list


def size_of_list_or_set(owner: object) -> int | None:
    """Return the number of items of a list or set, bypassing `__len__` of its class; None for other objects."""
    base = container_base(owner)
    return base.__len__(owner) if base in (list, set) else None


def lacks_key(container: Any, key: object) -> bool:
    """Whether a mapping does not store a key, so that `__missing__` returns the value."""
    return issubclass(type(container), dict) and is_known_item(container, key) and not dict.__contains__(container, key)
