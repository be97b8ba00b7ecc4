"""Guards on the user's classes, which a program reaches through the class of an object."""

from __future__ import annotations

import abc
import functools
import sys
import types
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from thunder_core.frontend.acquire.outside.guards import Is, OfType, TensorMetadata
from thunder_core.frontend.acquire.outside.object_guards import SpecialMethods
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.acquire.outside.sharp import is_users_code, is_users_file
from thunder_core.frontend.interpreter.special import special_methods
from thunder_core.tracing.library.changes.abstract_classes import regards
from thunder_core.tracing.library.changes.class_entries import dict_of, mro_of

if TYPE_CHECKING:
    from thunder_core.frontend.acquire.outside.outside import Outside

# For each wrapper of a function in a class body, the attributes that refer to the function.
PARTS: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"),
    classmethod: ("__func__",),
    staticmethod: ("__func__",),
    functools.partialmethod: ("func",),
    functools.singledispatchmethod: ("func",),
    functools.cached_property: ("func",),
}
# For each method of a descriptor, the position of the argument that is the owner class or an instance of it.
HOLDER_POSITION = {"__get__": 2, "__set__": 1, "__delete__": 1}

LOCALS = "<locals>"  # in the qualified name of a class that a function made
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


class Classes:
    """The user's classes that a program uses.

    A name found in a class is guarded, and so is its absence in earlier bases.

    Only the user's own classes are examined. Classes of the standard library and of installed packages do not change. A
    class that the program makes is a new class at each call, and has no path.
    """

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._seen: set[tuple[int, str]] = set()
        self._of_user: dict[int, tuple[type, bool]] = {}
        self._met: dict[int, type] = {}
        self._others: dict[tuple[int, int], types.FunctionType] = {}  # functions that no class of a library has

    def note_abstract(self, kind: type, candidate: type) -> None:
        """Guard that an abstract class does not regard another class as its subclass, which `register` may change.

        Other answers never change: an abstract class remembers a subclass that was found or registered.
        """
        if self._outside.is_made(kind) or self._outside.is_made(candidate) or not isinstance(kind, abc.ABCMeta):
            return
        if isinstance(candidate, type) and not regards(kind, candidate):
            self._outside.guard_abstract(kind, candidate)

    def note_instance(self, kind: type) -> None:
        """Note that the program met an instance of a class."""
        self._met[id(kind)] = kind

    def note_attribute_read(self, kind: type) -> None:
        """Note that the program reads an attribute of a class that it reached by an object.

        A class of the user becomes a root.
        """
        if self.is_users(kind):
            self._outside.root("class", kind.__name__, kind)

    def guard_special(self) -> None:
        """Guard the set of special methods of the user's classes whose instances were used.

        If a class lacks a special method, Python uses a default, so a special method that is added or removed later
        matters.
        """
        for guard in list(self._outside.guards.values()):
            if isinstance(guard, OfType | TensorMetadata):
                self.note_instance(guard.kind)
            elif isinstance(guard, Is) and isinstance(guard.value, type):
                self.note_instance(type(guard.value))
        bases = {id(base): base for kind in self._met.values() for base in self._bases(kind)}
        for base in bases.values():
            if not self._outside.effects.has_written_any(base):
                root = self._outside.root("class", base.__name__, base)
                self._outside.guard(SpecialMethods(root, special_methods(base)))

    def guard_entry(self, function: types.FunctionType, arguments: tuple[Any, ...]) -> None:
        """Guard the entry by which a function was reached, if the class of its first argument has it."""
        if not arguments or self._outside.path_of(function) is not None:
            return
        index = HOLDER_POSITION.get(function.__name__)
        if index is not None and len(arguments) > index:
            holder = arguments[index] if isinstance(arguments[index], type) else type(arguments[index])
            self.guard_descriptor(holder, arguments[0])
        first = arguments[0]
        if not (is_users_code(function.__code__) or LOCALS in type(first).__qualname__):
            return
        self.note_instance(type(first))
        for kind in (type(first), first) if issubclass(type(first), type) else (type(first),):
            name = self._name_of(kind, function) or self._special_name_of(kind, function)
            if name is not None:
                self.guard_defining_class(kind, name)
                break

    def guard_descriptor(self, holder: type, descriptor: object) -> None:
        """Guard the entry of a class that holds a descriptor used by the program."""
        for base in self._bases(holder):
            for name, unbound in dict_of(base).items():
                if unbound is descriptor:
                    self.guard_defining_class(holder, name)
                    return

    def attribute(self, owner: object, name: str) -> None:
        """Guard a name in the class of an object without a path, unless the object itself has the name."""
        self.note_instance(type(owner))
        namespace = getattr(owner, "__dict__", None)
        if not isinstance(namespace, dict) or name not in namespace:
            self.guard_defining_class(type(owner), name)
        elif self.is_users(type(owner)):
            self._outside.guard_unhidden(type(owner), name, is_stored=True)

    def guard_defining_class(self, kind: type, name: str) -> None:
        """Guard which base of a class defines a name, and that no earlier base does."""
        if (id(kind), name) in self._seen:
            return
        self._seen.add((id(kind), name))
        self._found_in(mro_of(kind), name)

    def found_by_super(self, found_by: object, name: str) -> None:
        """Guard which base defines a name that `super` finds, or that no base does."""
        get = super.__getattribute__
        this, kind = (get(found_by, own) for own in ("__thisclass__", "__self_class__"))
        if kind is not None:
            bases = mro_of(kind)
            self._found_in(bases[bases.index(this) + 1 :], name)

    def _found_in(self, bases: Iterable[type], name: str) -> None:
        """Guard which of the bases of a class defines a name, and that no earlier base does.

        Classes of libraries do not change, unless the user's code has replaced the entry.
        """
        bases = list(bases)
        holder = next((base for base in bases if name in dict_of(base)), None)
        is_replaced = holder is not None and not self.is_users(holder) and _is_users_entry(dict_of(holder)[name])
        for base in bases:
            is_held = base is holder
            if self.is_users(base) or (is_replaced and not self._outside.is_made(base)):
                root = self._outside.root("class", base.__name__, base)
                if is_held:
                    self._read(root.entry(name, dict_of(base)[name]), dict_of(base)[name])
                else:
                    self._outside.absent(root.attribute("__dict__", dict_of(base)), name)
            if is_held:
                return

    def _read(self, path: Path, unbound: object) -> None:
        """Guard an entry of a class, and the functions that it wraps."""
        if isinstance(unbound, types.MemberDescriptorType | types.GetSetDescriptorType):
            return
        self._outside.read(path, unbound)
        for part in PARTS.get(type(unbound), ()):
            function = getattr(unbound, part)
            if function is not None:
                self._outside.read(path.attribute(part, function), function)

    def _name_of(self, kind: type, function: types.FunctionType) -> str | None:
        """Return the name under which a class has a function, directly or wrapped."""
        bases = list(self._bases(kind))
        named = function.__name__
        for base in bases:
            if named in dict_of(base):
                return named if _holds(dict_of(base)[named], function) else None
        return next(
            (name for base in bases for name, unbound in dict_of(base).items() if _holds(unbound, function)), None
        )

    def _special_name_of(self, kind: type, function: types.FunctionType) -> str | None:
        """Return the name of a special method that the user's code has replaced in a library's class by a function."""
        if (id(kind), id(function)) in self._others or issubclass(kind, torch.Tensor):
            return None
        for base in mro_of(kind):
            for name, unbound in dict_of(base).items():
                if name[:2] == "__" and _holds(unbound, function):
                    return str(name)
        self._others[id(kind), id(function)] = function
        return None

    def _bases(self, kind: type) -> Iterable[type]:
        """Return the user's own classes among a class and its bases."""
        return filter(self.is_users, mro_of(kind))

    def is_users(self, kind: type) -> bool:
        """Whether a class is the user's own, and existed before the program."""
        entry = self._of_user.get(id(kind))
        if entry is None:
            module = sys.modules.get(kind.__module__) if isinstance(kind.__module__, str) else None
            entry = self._of_user[id(kind)] = kind, _is_users_module(kind, module)
        return entry[1] and not self._outside.is_made(kind)


def _is_users_module(kind: type, module: object) -> bool:
    """Whether a class is not a static C type, and belongs to a module of the user or was made by a function.

    A library may change a class that its function made, such as the class of each `torch.fx.GraphModule`.
    """
    if not kind.__flags__ & HEAP_TYPE:
        return False
    if LOCALS in kind.__qualname__:
        return True
    file = getattr(module, "__file__", None)
    return is_users_file(file) if isinstance(file, str) else module is None or kind.__module__ == "__main__"


def _is_users_entry(unbound: object) -> bool:
    """Whether a class entry is a function of the user's code, or wraps one."""
    functions = (part for part in (unbound, *_parts(unbound)) if isinstance(part, types.FunctionType))
    return any(is_users_code(function.__code__) for function in functions)


def _holds(unbound: object, function: object) -> bool:
    """Whether a class entry is a function or wraps it."""
    return unbound is function or any(part is function for part in _parts(unbound))


def _parts(unbound: object) -> Iterator[Any]:
    return (getattr(unbound, name) for name in PARTS.get(type(unbound), ()))
