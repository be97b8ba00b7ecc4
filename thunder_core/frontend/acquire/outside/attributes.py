"""Find the paths to attributes that the program reads, and guard that later lookups find them in the same place."""

from __future__ import annotations

import functools
import operator
import types
from typing import Any, Protocol

import torch

from thunder_core.frontend.acquire.outside.function_effects import belongs_to_torch
from thunder_core.frontend.acquire.outside.guards.guard import Guard
from thunder_core.frontend.acquire.outside.guards.objects import Lacks, has_own_fallback
from thunder_core.frontend.acquire.outside.paths import MODULE_TABLES, Path, Step
from thunder_core.frontend.interpreter.callables import callable_name
from thunder_core.frontend.interpreter.lookup import parts_of_partial, python_method, type_lookup
from thunder_core.tracing.ir.constants import is_constant
from thunder_core.tracing.ir.stored_attributes import namespace_of
from thunder_core.tracing.library.changes.class_entries import ABSENT, dict_of, mro_of
from thunder_core.tracing.library.changes.tensor_class import is_pytorchs
from thunder_core.tracing.library.changes.type_versions import ClassCaches, cached_by_version
from thunder_core.tracing.library.objects import is_native, lacks

MISSING = object()
C_METHODS = (types.BuiltinMethodType, types.MethodWrapperType)
OBSERVED_GETTERS = (
    operator.attrgetter,
    operator.itemgetter,
    operator.methodcaller,
)  # the interpreter runs the reads of these getters, and guards them


class GuardedReads(Protocol):
    """The methods of `Outside` that guard reads of attributes."""

    def root(self, step: Step, key: str, value: object) -> Path:
        """Return the root path of an object."""

    def read(self, path: Path, value: object) -> None:
        """Guard the value at a path."""

    def guard_absence(self, path: Path, name: object) -> None:
        """Guard that the namespace at a path lacks a name."""

    def guard(self, guard: Guard) -> None:
        """Add a guard that each later call checks."""

    def is_created_by_program(self, kind: type) -> bool:
        """Whether the program has created a class."""

    def guard_unhidden(self, kind: type, name: str, *, is_stored: bool) -> None:
        """Guard that a class does not hide a name.

        If an instance stores the name (`is_stored`), the class has no data descriptor for the name. If `__getattr__`
        looks it up, the class does not define the name at all.
        """


def locate(outside: GuardedReads, path: Path, name: str, value: object) -> Path | None:
    """Return the path to an attribute of the object at `path`.

    None if the value needs no guard of its own: other guards cover it, or it cannot change. The result of interpreted
    code is covered by the guards on the reads of this code. The metadata of a tensor has a guard of its own, and C
    methods of classes do not change. The lookup is guarded, too: for example, the object must not store an attribute
    that hides a method of its class.
    """
    owner = path.value
    namespace = namespace_of(owner)
    is_stored = isinstance(namespace, dict) and name in namespace and not isinstance(owner, types.ModuleType)
    if is_newly_bound(value, owner) and not isinstance(owner, torch.Tensor) and not is_stored:
        return None
    if isinstance(type(owner).__getattribute__, types.FunctionType):
        # Python code computes the value. If it returns a new object at each read, the reads of the code are guarded.
        return path.attribute(name, value) if is_constant(value) or getattr(owner, name) is value else None
    if isinstance(owner, torch.jit.ScriptModule) and name not in vars(owner) and not hasattr(type(owner), name):
        return path.attribute(name, value)  # C++ code stores it
    if isinstance(namespace, dict):
        if name in namespace and namespace[name] is value:
            outside.guard_unhidden(type(owner), name, is_stored=True)
            return path.entry(name, value)
        if isinstance(owner, torch.nn.Module) and not isinstance(owner, torch.jit.ScriptModule):
            for table in MODULE_TABLES:
                if namespace[table].get(name, MISSING) is value:  # otherwise the class has an attribute of this name
                    outside.guard_unhidden(type(owner), name, is_stored=False)
                    outside.guard_absence(path.attribute("__dict__", namespace), name)
                    return path.entry(table, namespace[table]).item(name, value)
    if isinstance(owner, torch.Tensor):
        if name == "__dict__":
            return path.attribute(name, value)
        guard_added_entry(outside, type(owner), name)
        unbound = type_lookup(type(owner), name)
        if unbound is not ABSENT:
            guard_not_in_instance(outside, path, name, unbound)
        return None
    if isinstance(owner, type):
        return _path_to_class_attribute(outside, path, name, value)
    if isinstance(owner, types.ModuleType) and type(owner) is types.ModuleType:
        return _path_to_module_attribute(outside, path, name, value)
    return _path_to_inherited_attribute(outside, path, name, value)


def is_newly_bound(value: Any, owner: Any) -> bool:
    """Whether a value is a C method that each read of the attribute binds to `owner` or to its class.

    The C functions that a module stores are not bound at each read, and may be replaced. Those of PyTorch's modules
    are never replaced, so they count as bound. A method of pybind11 is a `MethodType` of a C function.
    """
    if type(value) is types.MethodType and type(value.__func__) is types.BuiltinMethodType:
        return value.__self__ is owner
    if not issubclass(type(value), C_METHODS) or (
        isinstance(owner, types.ModuleType) and is_entry_of_module(value, owner)
    ):
        return False
    return value.__self__ is owner or value.__self__ is type(owner)


def is_entry_of_module(function: object, module: types.ModuleType) -> bool:
    """Whether a module stores a function under the function's own name; False for modules of PyTorch."""
    return not belongs_to_torch(module) and vars(module).get(callable_name(function)) is function


def _path_to_class_attribute(outside: GuardedReads, path: Path, name: str, value: Any) -> Path | None:
    """Return the path to an attribute of a class, which the class, a base or a metaclass defines.

    None if reading it runs Python code; then the class entry is guarded instead.
    """
    owner = path.value
    base = _defining_class(owner, name)
    if base is None or isinstance(getattr(type(owner), name, None), property):
        if type(owner) is type:
            return path.attribute(name, value)
        return _path_to_inherited_attribute(outside, path, name, value)
    unbound = dict_of(base)[name]
    if not is_interpreted(unbound):
        return path.attribute(name, value)
    _guard_entry(outside, owner, base, name)
    return None


def _guard_entry(outside: GuardedReads, kind: type, base: type, name: str) -> None:
    """Guard the entry of a name in `base`, and that no class before `base` in the MRO of `kind` defines the name."""
    for earlier_base in mro_of(kind)[: mro_of(kind).index(base)]:
        if outside.is_created_by_program(earlier_base):
            continue
        earlier_path = outside.root("class", earlier_base.__name__, earlier_base)
        outside.guard_absence(earlier_path.attribute("__dict__", dict_of(earlier_base)), name)
    unbound = dict_of(base)[name]
    if not outside.is_created_by_program(base):
        outside.read(outside.root("class", base.__name__, base).entry(name, unbound), unbound)


def guard_added_entry(outside: GuardedReads, kind: type, name: str) -> Any:
    """Guard and return the entry that the user has added to a class of tensors; `MISSING` if there is none."""
    base = _class_with_added_entry(kind, name)
    if base is None:
        return MISSING
    _guard_entry(outside, kind, base, name)
    return dict_of(base)[name]


@cached_by_version(ClassCaches())
def _class_with_added_entry(kind: type, name: str) -> tuple[type | None, bool]:
    """Return the class that defines a name of a class of tensors; None if PyTorch's own class or no class does."""
    base = _defining_class(kind, name)
    return (None if base is None or is_pytorchs(base, name) else base), True


def is_hidden_by_metaclass(kind: type, name: str) -> bool:
    """Whether a data descriptor of the metaclass hides the entry of a class when the name is read from the class."""
    return hasattr(type(type_lookup(type(kind), name)), "__set__")


def is_interpreted(unbound: object) -> bool:
    """Whether reading a class entry from the class runs Python code, whose reads are guarded."""
    if isinstance(unbound, classmethod):
        return isinstance(unbound.__func__, property)
    return isinstance(getattr(type(unbound), "__get__", None), types.FunctionType)


def _path_to_module_attribute(outside: GuardedReads, path: Path, name: str, value: object) -> Path | None:
    """Return the path to an attribute of a module; None for a new object that the module's `__getattr__` returns."""
    fallback = vars(path.value).get("__getattr__")
    if type(fallback) is not types.FunctionType or is_constant(value) or getattr(path.value, name) is value:
        return path.attribute(name, value)
    outside.guard_absence(path.attribute("__dict__", vars(path.value)), name)
    outside.read(path.entry("__getattr__", fallback), fallback)
    return None


def _defining_class(kind: type, name: str) -> type | None:
    """Return the first class in the MRO of a class that defines a name, or None."""
    return next((base for base in mro_of(kind) if name in dict_of(base)), None)


def is_getter_in_c(unbound: object) -> bool:
    """Whether a class entry is a property with a getter in C, as in pybind11, whose reads are unknown."""
    getter = unbound.fget if isinstance(unbound, property) else None
    return callable(getter) and not isinstance(getter, OBSERVED_GETTERS) and not runs_python(getter)


def runs_python(function: object) -> bool:
    """Whether a call of an object runs a Python function, directly or through a bound method or a partial."""
    while isinstance(function, types.MethodType | functools.partial):
        function = function.__func__ if isinstance(function, types.MethodType) else parts_of_partial(function)[0]
    return isinstance(function, types.FunctionType) or python_method(type(function), "__call__") is not None


def _path_to_inherited_attribute(outside: GuardedReads, path: Path, name: str, value: object) -> Path | None:
    """Return the path to an attribute that the class of an object defines.

    None if the value needs no guard of its own: other guards cover it, or it cannot change.
    """
    kind = type(path.value)
    for base in mro_of(kind):
        if name not in dict_of(base):
            continue
        if outside.is_created_by_program(base):
            return None
        unbound = dict_of(base)[name]
        is_python_entry = isinstance(unbound, types.FunctionType | property | staticmethod)
        if is_python_entry and is_hidden_by_metaclass(kind, name):
            guard_not_in_instance(outside, path, name, unbound)
            _guard_entry(outside, kind, base, name)
            return None
        if is_getter_in_c(unbound):
            return path.attribute(name, value)
        if is_python_entry:
            guard_not_in_instance(outside, path, name, unbound)
            if outside.is_created_by_program(kind):
                _guard_entry(outside, kind, base, name)
                return None
            guarded_value = unbound.__func__ if isinstance(unbound, staticmethod) else unbound
            outside.read(outside.root("class", kind.__name__, kind).attribute(name, guarded_value), guarded_value)
            return None
        if isinstance(unbound, classmethod) or isinstance(getattr(type(unbound), "__get__", None), types.FunctionType):
            guard_not_in_instance(outside, path, name, unbound)
            outside.read(outside.root("class", base.__name__, base).entry(name, unbound), unbound)
            return None
        if has_own_fallback(kind) and lacks(path.value, name):  # an empty slot, so that `__getattr__` is called
            outside.guard(Lacks(path, name))
            return None
        return path.attribute(name, value)
    if not hasattr(kind, "__getattr__"):
        return path.attribute(name, value)
    _guard_absence_everywhere(outside, path, name)
    return None


def _guard_absence_everywhere(outside: GuardedReads, path: Path, name: str) -> None:
    """Guard that neither an object nor its classes define an attribute, so that `__getattr__` is called."""
    owner = path.value
    namespace = namespace_of(owner)
    if isinstance(namespace, dict):
        outside.guard_absence(path.attribute("__dict__", namespace), name)
    for kind in (*mro_of(type(owner)), *(mro_of(owner) if isinstance(owner, type) else ())):
        if not is_native(kind) and not outside.is_created_by_program(kind):
            outside.guard_absence(outside.root("class", kind.__name__, kind).attribute("__dict__", dict_of(kind)), name)


def guard_not_in_instance(outside: GuardedReads, path: Path, name: str, unbound: object) -> None:
    """Guard that an instance has no attribute of this name, which would hide the class entry."""
    namespace = namespace_of(path.value)
    if isinstance(namespace, dict) and not hasattr(type(unbound), "__set__"):
        outside.guard_absence(path.attribute("__dict__", namespace), name)
