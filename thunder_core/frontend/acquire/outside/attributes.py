"""Attributes that the program reads: their paths, and guards that Python still finds them in the same object."""

from __future__ import annotations

import functools
import operator
import types
from typing import Any, Protocol

import torch

from thunder_core.frontend.acquire.outside.drawing_functions import belongs_to_torch
from thunder_core.frontend.acquire.outside.paths import MODULE_TABLES, Path
from thunder_core.frontend.interpreter.lookup import parts_of_partial, python_method, type_lookup
from thunder_core.tracing.ir.constants import is_constant
from thunder_core.tracing.library.changes.class_entries import ABSENT, dict_of, mro_of
from thunder_core.tracing.library.changes.tensor_class import is_pytorchs
from thunder_core.tracing.library.objects import is_native

MISSING = object()
C_METHODS = (types.BuiltinMethodType, types.MethodWrapperType)
OBSERVED_GETTERS = (operator.attrgetter, operator.itemgetter, operator.methodcaller)  # in C; their reads are observed


class GuardedReads(Protocol):
    """The guarding of reads (`acquire.outside.Outside`): roots of paths, values that were read, and missing names."""

    def root(self, step: str, key: str, value: object) -> Path:
        """Return a path that begins at this object."""

    def read(self, path: Path, value: object) -> None:
        """Guard that this value is at the path."""

    def absent(self, path: Path, name: object) -> None:
        """Guard that the namespace at the path has no such name."""

    def is_made(self, kind: type) -> bool:
        """Whether the program made a class."""

    def guard_unhidden(self, kind: type, name: str, *, is_stored: bool) -> None:
        """Guard that a class has no descriptor for a name that an instance stores or that `__getattr__` returns."""


def locate(outside: GuardedReads, path: Path, name: str, value: object) -> Path | None:
    """Return the path to an attribute of the object at `path`; None if no further guard is needed.

    No guard is needed for results of interpreted code (whose own reads are guarded), for the metadata of tensors
    (guarded as a whole) and for C methods of classes (which cannot change). An attribute of a tensor may hide a method.
    """
    owner = path.value
    namespace = getattr(owner, "__dict__", None)
    if is_bound_anew(value, owner) and not isinstance(owner, torch.Tensor):
        return None
    if isinstance(type(owner).__getattribute__, types.FunctionType):
        # The result depends on Python code. If the code returns a new object each time, its own reads are guarded.
        return path.attribute(name, value) if is_constant(value) or getattr(owner, name) is value else None
    if isinstance(owner, torch.jit.ScriptModule) and name not in vars(owner) and not hasattr(type(owner), name):
        return path.attribute(name, value)  # C++ code stores it
    if isinstance(namespace, dict):
        if name in namespace and namespace[name] is value:
            outside.guard_unhidden(type(owner), name, is_stored=True)
            return path.entry(name, value)
        if isinstance(owner, torch.nn.Module) and not isinstance(owner, torch.jit.ScriptModule):
            for table in MODULE_TABLES:
                if namespace[table].get(name, MISSING) is value:  # otherwise the class has an attribute of that name
                    outside.guard_unhidden(type(owner), name, is_stored=False)
                    outside.absent(path.attribute("__dict__", namespace), name)
                    return path.entry(table, namespace[table]).item(name, value)
    if isinstance(owner, torch.Tensor):
        if name == "__dict__":
            return path.attribute(name, value)
        guard_added_entry(outside, type(owner), name)
        unbound = type_lookup(type(owner), name)
        if unbound is not ABSENT:
            require_unshadowed(outside, path, name, unbound)
        return None
    if isinstance(owner, type):
        return _of_type(outside, path, name, value)
    if isinstance(owner, types.ModuleType) and type(owner) is types.ModuleType:
        return _of_module(outside, path, name, value)
    return _of_class(outside, path, name, value)


def is_bound_anew(value: Any, owner: Any) -> bool:
    """Whether a value is a C method that each read binds again, to an object or to its class.

    Functions in a module are not bound again and may be replaced, except in PyTorch's own modules. Methods of pybind11
    are C functions wrapped in Python methods.
    """
    if type(value) is types.MethodType and type(value.__func__) is types.BuiltinMethodType:
        return value.__self__ is owner
    if not issubclass(type(value), C_METHODS) or (isinstance(owner, types.ModuleType) and is_held(value, owner)):
        return False
    return value.__self__ is owner or value.__self__ is type(owner)


def is_held(function: object, module: types.ModuleType) -> bool:
    """Whether a module has a function under the function's own name; False for modules of PyTorch."""
    return not belongs_to_torch(module) and vars(module).get(getattr(function, "__name__", "")) is function


def _of_type(outside: GuardedReads, path: Path, name: str, value: Any) -> Path | None:
    """Return the path to an attribute of a class, from the class itself, a base, or its metaclass."""
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
    """Guard the entry of a class's base under a name, and that no class before the base has the name."""
    for hiding in mro_of(kind)[: mro_of(kind).index(base)]:
        if outside.is_made(hiding):
            continue
        hidden = outside.root("class", hiding.__name__, hiding)
        outside.absent(hidden.attribute("__dict__", dict_of(hiding)), name)
    unbound = dict_of(base)[name]
    if not outside.is_made(base):
        outside.read(outside.root("class", base.__name__, base).entry(name, unbound), unbound)


def guard_added_entry(outside: GuardedReads, kind: type, name: str) -> Any:
    """Guard and return the entry of a class of tensors under a name that is not PyTorch's own; `MISSING` otherwise."""
    base = _base_with(kind, name)
    if base is None or is_pytorchs(base, name):
        return MISSING
    _read_entry(outside, kind, base, name)
    return dict_of(base)[name]


def is_hidden_by_metaclass(kind: type, name: str) -> bool:
    """Whether a data descriptor of the metaclass gives the class another value for a name than its instances."""
    return hasattr(type(type_lookup(type(kind), name)), "__set__")


def is_interpreted(unbound: object) -> bool:
    """Whether reading a class entry from the class runs Python code, whose own reads are guarded."""
    if isinstance(unbound, classmethod):
        return isinstance(unbound.__func__, property)
    return isinstance(getattr(type(unbound), "__get__", None), types.FunctionType)


def _of_module(outside: GuardedReads, path: Path, name: str, value: object) -> Path | None:
    """Return the path to a module's attribute.

    Its `__getattr__` is interpreted, and may return a new object each time.
    """
    fallback = vars(path.value).get("__getattr__")
    if type(fallback) is not types.FunctionType or is_constant(value) or getattr(path.value, name) is value:
        return path.attribute(name, value)
    outside.absent(path.attribute("__dict__", vars(path.value)), name)
    outside.read(path.entry("__getattr__", fallback), fallback)
    return None


def _base_with(kind: type, name: str) -> type | None:
    """Return the first class among a class and its bases that defines a name."""
    return next((base for base in mro_of(kind) if name in dict_of(base)), None)


def is_getter_in_c(unbound: object) -> bool:
    """Whether a property has a C getter, as in pybind11, so that its reads are unknown."""
    getter = unbound.fget if isinstance(unbound, property) else None
    return callable(getter) and not isinstance(getter, OBSERVED_GETTERS) and not runs_python(getter)


def runs_python(function: object) -> bool:
    """Whether a call runs Python code, directly or through a bound method or a partial."""
    while isinstance(function, types.MethodType | functools.partial):
        function = function.__func__ if isinstance(function, types.MethodType) else parts_of_partial(function)[0]
    return isinstance(function, types.FunctionType) or python_method(type(function), "__call__") is not None


def _of_class(outside: GuardedReads, path: Path, name: str, value: object) -> Path | None:
    kind = type(path.value)
    for base in mro_of(kind):
        if name not in dict_of(base):
            continue
        if outside.is_made(base):
            return None
        unbound = dict_of(base)[name]
        is_python_group = isinstance(unbound, types.FunctionType | property | staticmethod)
        if is_python_group and is_hidden_by_metaclass(kind, name):
            require_unshadowed(outside, path, name, unbound)
            _read_entry(outside, kind, base, name)
            return None
        if is_getter_in_c(unbound):
            return path.attribute(name, value)
        if is_python_group:
            require_unshadowed(outside, path, name, unbound)
            if outside.is_made(kind):
                _read_entry(outside, kind, base, name)
                return None
            read = unbound.__func__ if isinstance(unbound, staticmethod) else unbound
            outside.read(outside.root("class", kind.__name__, kind).attribute(name, read), read)
            return None
        if isinstance(unbound, classmethod) or isinstance(getattr(type(unbound), "__get__", None), types.FunctionType):
            require_unshadowed(outside, path, name, unbound)
            outside.read(outside.root("class", base.__name__, base).entry(name, unbound), unbound)
            return None
        return path.attribute(name, value)
    if not hasattr(kind, "__getattr__"):
        return path.attribute(name, value)
    _absent_everywhere(outside, path, name)
    return None


def _absent_everywhere(outside: GuardedReads, path: Path, name: str) -> None:
    """Guard that neither an object nor its classes have an attribute, so that `__getattr__` is called."""
    owner = path.value
    namespace = getattr(owner, "__dict__", None)
    if isinstance(namespace, dict):
        outside.absent(path.attribute("__dict__", namespace), name)
    for kind in (*mro_of(type(owner)), *(mro_of(owner) if isinstance(owner, type) else ())):
        if not is_native(kind) and not outside.is_made(kind):
            outside.absent(outside.root("class", kind.__name__, kind).attribute("__dict__", dict_of(kind)), name)


def require_unshadowed(outside: GuardedReads, path: Path, name: str, unbound: object) -> None:
    """Guard that the instance has no attribute of that name, which would override the class's."""
    namespace = getattr(path.value, "__dict__", None)
    if isinstance(namespace, dict) and not hasattr(type(unbound), "__set__"):
        outside.absent(path.attribute("__dict__", namespace), name)
