"""Properties of callables: which of their arguments and attributes a call reads."""

from __future__ import annotations

import functools
import operator
import types
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from thunder_core.frontend.acquire.outside.function_effects import is_name_of_torch
from thunder_core.frontend.interpreter.callables import callable_attribute, callable_name
from thunder_core.frontend.interpreter.lookup import PARTIAL_FIELDS, type_lookup
from thunder_core.tracing.ir.constants import BY_IDENTITY, is_constant

# C functions that read only the direct items of their arguments, or less.
SHALLOW_FUNCTIONS = frozenset(
    {
        *(len, isinstance, iter, next, list, tuple, dict, enumerate, zip, reversed, bool, id, type),
        *(getattr, hasattr, setattr, delattr, callable),
    }
)
TENSOR_BASE = torch.Tensor.__base__ or torch.Tensor  # the class in C that has the methods of tensors
Answer = TypeVar("Answer")
STORING_METHODS = ("append", "extend", "setdefault")
METHODS_STORING_VALUES = (*STORING_METHODS, "insert", "setattr", "__setattr__", "__setitem__")
# The classes of C callables that may hash an argument. Other C callables call a function, which is examined itself.
CLASSES_THAT_MAY_HASH = (
    *(type, types.BuiltinFunctionType, types.MethodDescriptorType, types.ClassMethodDescriptorType),
    *(types.WrapperDescriptorType, types.MethodWrapperType, operator.itemgetter),
)
# By class: the attributes that a call of an instance reads, or an operation with a slice.
ATTRIBUTES_READ_BY_CALLS: dict[type, tuple[str, ...]] = {
    slice: ("start", "stop", "step"),
    types.MethodType: ("__func__", "__self__"),
    functools._lru_cache_wrapper: ("__wrapped__",),
    staticmethod: ("__func__",),
}


def cached_for_modules(find: Callable[[Any], Answer]) -> Callable[[Any], Answer]:
    """Cache a function's answers about callables, for C functions of modules and of `torch`.

    These exist as long as the process, and do not change. Other callables are not kept.
    """
    answers: dict[Any, Answer] = {}

    @functools.wraps(find)
    def find_cached(function: Any) -> Answer:
        if type(function) is not types.BuiltinFunctionType:
            return find(function)
        owner = function.__self__
        if owner is not None and type(owner) is not types.ModuleType:  # None for functions such as `torch.add`
            return find(function)
        if function not in answers:
            answers[function] = find(function)
        return answers[function]

    return find_cached


def owner_of(function: object) -> tuple[Any, ...]:
    """Return a tuple of the object to which a method is bound; an empty tuple for a function."""
    return (function.__self__,) if type(function) is types.MethodType else ()


def reads_only_classes(function: object) -> bool:
    """Whether a function reads only the class or the identity of its arguments, and no contents."""
    return type(function) in (type, types.BuiltinFunctionType) and function in (isinstance, id, type, getattr, hasattr)


def dereferenced_reference(function: Any) -> Any:
    """Return the weak reference that a C call dereferences, directly or by `super().__call__()`; otherwise None."""
    if type(function) is types.BuiltinFunctionType:
        return None
    is_call_method = type(function) is types.MethodWrapperType and function.__name__ == "__call__"
    reference = function.__self__ if is_call_method else function
    return reference if issubclass(type(reference), weakref.ref) else None


def is_making_class(function: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call creates a class: a call of a metaclass, or of `type`, with more than one argument."""
    return issubclass(type(function), type) and issubclass(function, type) and len(args) > 1


def is_shallow(function: object) -> bool:
    """Whether a function reads only the direct items of containers in its arguments."""
    try:
        return function in SHALLOW_FUNCTIONS or callable_name(function) in STORING_METHODS
    except TypeError:  # an unhashable callable
        return False


@cached_for_modules
def may_hash_tensors(function: Any) -> bool:
    """Whether a C function may hash tensors or compare them by identity: no function or method of PyTorch does."""
    if type(function) is types.BuiltinFunctionType and issubclass(type(function.__self__), TENSOR_BASE):
        return False
    if not issubclass(type(function), CLASSES_THAT_MAY_HASH) or callable_name(function) in METHODS_STORING_VALUES:
        return False
    return not is_function_of_torch(function)


def is_torch_function(function: object) -> bool:
    """Whether a function belongs to PyTorch, or is a method of a tensor.

    Methods of PyTorch's other objects are excluded: a generator's `manual_seed`, for example, refuses NumPy scalars.
    """
    return (
        is_name_of_torch(callable_attribute(function, "__module__", ""))
        or getattr(torch, callable_name(function), None) is function  # a C function without a module name
        or issubclass(owner_class(function), TENSOR_BASE)
    )


def is_function_of_torch(function: object) -> bool:
    """Whether a function is PyTorch's own, or a method of an object of PyTorch, such as a tensor or a generator."""
    return is_torch_function(function) or is_name_of_torch(owner_class(function).__module__)


def owner_class(function: object) -> type:
    """Return the class whose method a function is; `NoneType` for other functions."""
    owner: Any = callable_attribute(function, "__self__")
    if owner is None:
        owner = callable_attribute(function, "__objclass__")
    return owner if issubclass(type(owner), type) else type(owner)


def is_fixed(value: object) -> bool:
    """Whether a value is a constant, a class, a function or a module, or a tuple of such values."""
    if type(value) is tuple:
        return all(map(is_fixed, value))
    return is_constant(value) or issubclass(type(value), BY_IDENTITY)


def is_plain_mapping(value: object) -> bool:
    """Whether a value is a dict, or an instance of a subclass that does not override `__contains__`."""
    return issubclass(type(value), dict) and type_lookup(type(value), "__contains__") is dict.__contains__


def fields_of_call(kind: type) -> tuple[str, ...]:
    """Return the names of the attributes that a call of an instance reads.

    Fields of a partial that a subclass hides by attributes of its own are left out.
    """
    if not issubclass(kind, functools.partial):
        return ATTRIBUTES_READ_BY_CALLS.get(kind, ())
    return tuple(name for name in PARTIAL_FIELDS if type_lookup(kind, name) is vars(functools.partial)[name])


def class_when_read(value: object) -> type:
    """Return the class of an object, bypassing a `__class__` property, except for modules.

    A module of an artifact may be loaded lazily: reading its `__class__` loads it, and so changes its class.
    """
    if issubclass(type(value), torch.nn.Module):
        _ = value.__class__
    return type(value)
