"""Attributes that the program read: where they lie, and what makes Python find them there and not elsewhere."""

from __future__ import annotations

import functools
import types
from typing import Any, Protocol

import torch

from thunder_core.frontend.acquire.outside.paths import MODULE_TABLES, Path
from thunder_core.frontend.interpreter.lookup import dict_of, mro_of, python_method, type_lookup
from thunder_core.tracing.ir.constants import is_constant
from thunder_core.tracing.library.objects import is_native

MISSING = object()
C_METHODS = (types.BuiltinMethodType, types.MethodWrapperType)


class GuardedReads(Protocol):
    """The guarding of reads (`acquire.outside.Outside`): roots of paths, what was read, and what was not there."""

    def root(self, step: str, key: str, value: Any) -> Path:
        """The root of paths that is this object."""

    def read(self, path: Path, value: Any) -> None:
        """Guard that this value lies at the path."""

    def absent(self, path: Path, name: Any) -> None:
        """Guard that the namespace at the path has no such name."""


def locate(outside: GuardedReads, path: Path, name: str, value: Any) -> Path | None:
    """The path to an attribute of what `path` leads to; None where nothing more has to be guarded.

    That is so for what interpreted code computed (its own reads are known), for the metadata of tensors (guarded as
    a whole) and for the methods of classes in C (they cannot change).
    """
    owner = path.value
    namespace = getattr(owner, "__dict__", None)
    if is_bound_anew(value, owner):
        return None
    if isinstance(type(owner).__getattribute__, types.FunctionType):
        # Only Python's own lookup says what it answers; where that is new each time, what it read is guarded.
        return path.attribute(name, value) if is_constant(value) or getattr(owner, name) is value else None
    if isinstance(namespace, dict):
        if name in namespace and namespace[name] is value:
            return path.entry(name, value)
        if isinstance(owner, torch.nn.Module):
            for table in MODULE_TABLES:
                if namespace[table].get(name, MISSING) is value:  # else the class has an attribute of that name
                    return path.entry(table, namespace[table]).item(name, value)
    if isinstance(owner, torch.Tensor):
        return None
    if isinstance(owner, type):
        return _of_type(outside, path, name, value)
    if isinstance(owner, types.ModuleType) and type(owner) is types.ModuleType:
        return _of_module(outside, path, name, value)
    return _of_class(outside, path, name, value)


def is_bound_anew(value: Any, owner: Any) -> bool:
    """Whether a value is a method of C's that each read binds anew, to an object or to the class of one.

    Functions that a module holds are not bound anew, and others may take their place; those of PyTorch's own modules
    stay. Methods of pybind11 are functions of C in a method of Python's.
    """
    if type(value) is types.MethodType and type(value.__func__) is types.BuiltinMethodType:
        return value.__self__ is owner
    if not issubclass(type(value), C_METHODS) or (isinstance(owner, types.ModuleType) and is_held(value, owner)):
        return False
    return value.__self__ is owner or value.__self__ is type(owner)


def is_held(function: Any, module: types.ModuleType) -> bool:
    """Whether a module that is none of PyTorch's holds a function under its name."""
    is_torchs = module.__name__.partition(".")[0] == "torch"
    return not is_torchs and vars(module).get(getattr(function, "__name__", "")) is function


def _of_type(outside: GuardedReads, path: Path, name: str, value: Any) -> Path | None:
    """The path to an attribute of a class: its own or a base's, else its metaclass's."""
    owner = path.value
    base = _base_with(owner, name)
    if base is None or isinstance(getattr(type(owner), name, None), property):
        return path.attribute(name, value) if type(owner) is type else _of_class(outside, path, name, value)
    unbound = dict_of(base)[name]
    if not is_interpreted(unbound):
        return path.attribute(name, value)
    _read_entry(outside, owner, base, name)
    return None


def _read_entry(outside: GuardedReads, kind: type, base: type, name: str) -> None:
    """Guard what a class holds under a name as its base has it, and that no class before the base has the name."""
    for hiding in mro_of(kind)[: mro_of(kind).index(base)]:
        hidden = outside.root("class", hiding.__name__, hiding)
        outside.absent(hidden.attribute("__dict__", dict_of(hiding)), name)
    unbound = dict_of(base)[name]
    outside.read(outside.root("class", base.__name__, base).entry(name, unbound), unbound)


def is_hidden_by_metaclass(kind: type, name: str) -> bool:
    """Whether the class itself answers for a name otherwise than its instances: its metaclass has a data descriptor."""
    return hasattr(type(type_lookup(type(kind), name)), "__set__")


def is_interpreted(unbound: Any) -> bool:
    """Whether reading what a class holds from the class runs Python code, whose own reads are known."""
    if isinstance(unbound, classmethod):
        return isinstance(unbound.__func__, property)
    return isinstance(getattr(type(unbound), "__get__", None), types.FunctionType)


def _of_module(outside: GuardedReads, path: Path, name: str, value: Any) -> Path | None:
    """The path to what a module gives; its `__getattr__` is interpreted, and may give a new object each time."""
    fallback = vars(path.value).get("__getattr__")
    if type(fallback) is not types.FunctionType or is_constant(value) or getattr(path.value, name) is value:
        return path.attribute(name, value)
    outside.absent(path.attribute("__dict__", vars(path.value)), name)
    outside.read(path.entry("__getattr__", fallback), fallback)
    return None


def _base_with(kind: type, name: str) -> type | None:
    """The class among a class and its bases that defines a name."""
    return next((base for base in mro_of(kind) if name in dict_of(base)), None)


def is_getter_in_c(unbound: Any) -> bool:
    """Whether a property gets its value by code in C, as those of pybind11 do, so that its reads are not known."""
    return isinstance(unbound, property) and callable(unbound.fget) and not runs_python(unbound.fget)


def runs_python(function: Any) -> bool:
    """Whether a call of this is one of Python code, at once or by what it is bound to or made of."""
    while isinstance(function, types.MethodType | functools.partial):
        function = function.__func__ if isinstance(function, types.MethodType) else function.func
    return isinstance(function, types.FunctionType) or python_method(type(function), "__call__") is not None


def _of_class(outside: GuardedReads, path: Path, name: str, value: Any) -> Path | None:
    kind = type(path.value)
    for base in mro_of(kind):
        if name not in dict_of(base):
            continue
        unbound = dict_of(base)[name]
        is_of_python = isinstance(unbound, types.FunctionType | property | staticmethod)
        if is_of_python and is_hidden_by_metaclass(kind, name):
            _unshadowed(outside, path, name, unbound)
            _read_entry(outside, kind, base, name)
            return None
        if is_getter_in_c(unbound):
            return path.attribute(name, value)
        if is_of_python:
            _unshadowed(outside, path, name, unbound)
            read = unbound.__func__ if isinstance(unbound, staticmethod) else unbound
            outside.read(outside.root("class", kind.__name__, kind).attribute(name, read), read)
            return None
        if isinstance(unbound, classmethod) or isinstance(getattr(type(unbound), "__get__", None), types.FunctionType):
            _unshadowed(outside, path, name, unbound)
            outside.read(outside.root("class", base.__name__, base).entry(name, unbound), unbound)
            return None
        return path.attribute(name, value)
    if not hasattr(kind, "__getattr__"):
        return path.attribute(name, value)
    if not isinstance(path.value, torch.nn.Module):
        _absent_everywhere(outside, path, name)
    return None


def _absent_everywhere(outside: GuardedReads, path: Path, name: str) -> None:
    """Guard that neither an instance nor its classes have an attribute, so that `__getattr__` answers."""
    namespace = getattr(path.value, "__dict__", None)
    if isinstance(namespace, dict):
        outside.absent(path.attribute("__dict__", namespace), name)
    for kind in mro_of(type(path.value)):
        if not is_native(kind):
            outside.absent(outside.root("class", kind.__name__, kind).attribute("__dict__", dict_of(kind)), name)


def _unshadowed(outside: GuardedReads, path: Path, name: str, unbound: Any) -> None:
    """Guard that the instance gets no attribute of that name, which would win over the class's."""
    namespace = getattr(path.value, "__dict__", None)
    if isinstance(namespace, dict) and not hasattr(type(unbound), "__set__"):
        outside.absent(path.attribute("__dict__", namespace), name)
