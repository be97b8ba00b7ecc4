"""Guards on the user's classes, whose attributes a program reads through an object."""

from __future__ import annotations

import abc
import functools
import sys
import types
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from thunder_core.foundation.type_flags import HEAP_TYPE
from thunder_core.frontend.acquire.outside.guards.classes import SpecialMethods
from thunder_core.frontend.acquire.outside.guards.tensors import TensorMetadata
from thunder_core.frontend.acquire.outside.guards.values import Is, OfType
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.acquire.outside.sharp import is_users_code, is_users_file
from thunder_core.frontend.interpreter.special import special_methods
from thunder_core.tracing.ir.stored_attributes import namespace_of
from thunder_core.tracing.library.changes.abstract_classes import regards
from thunder_core.tracing.library.changes.class_entries import dict_of, mro_of

if TYPE_CHECKING:
    from thunder_core.frontend.acquire.outside.outside import Outside

# For each class of wrappers of functions in a class body, the attributes that refer to the wrapped functions.
ATTRIBUTES_OF_WRAPPERS: dict[type, tuple[str, ...]] = {
    property: ("fget", "fset", "fdel"),
    classmethod: ("__func__",),
    staticmethod: ("__func__",),
    functools.partialmethod: ("func",),
    functools.singledispatchmethod: ("func",),
    functools.cached_property: ("func",),
}
# For each method of a descriptor, the index of the argument that is the owner class or an instance of it.
OWNER_INDEX = {"__get__": 2, "__set__": 1, "__delete__": 1}

LOCALS = "<locals>"  # a part of the qualified name of a class that a function creates


class Classes:
    """The user's classes that a program uses.

    If a name is found in a class, two facts are guarded: the entry of the class, and that earlier bases lack the name.

    Classes of the standard library and of installed packages are guarded only where the user's code has replaced an
    entry, because they do not change otherwise. A class that the program creates is a new class at each call, and is
    not guarded.
    """

    def __init__(self, outside: Outside) -> None:
        self._outside = outside
        self._seen: set[tuple[int, str]] = set()
        self._is_users_by_id: dict[int, tuple[type, bool]] = {}
        self._used_classes: dict[int, type] = {}
        # By class and function: functions that are no special method of the class.
        self._not_special: dict[tuple[int, int], types.FunctionType] = {}

    def note_abstract(self, kind: type, candidate: type) -> None:
        """Guard that an abstract class does not regard another class as its subclass, because `register` may change
        this.

        The opposite needs no guard: an abstract class remembers each subclass that it has found.
        """
        if (
            self._outside.is_created_by_program(kind)
            or self._outside.is_created_by_program(candidate)
            or not isinstance(kind, abc.ABCMeta)
        ):
            return
        if isinstance(candidate, type) and not regards(kind, candidate):
            self._outside.guard_abstract(kind, candidate)

    def note_instance(self, kind: type) -> None:
        """Note that the program uses an instance of a class."""
        self._used_classes[id(kind)] = kind

    def note_attribute_read(self, kind: type) -> None:
        """Note that the program reads an attribute of a class that no path reaches.

        A user's class becomes a root, at which paths start.
        """
        if self.is_users(kind):
            self._outside.root("class", kind.__name__, kind)

    def guard_special_methods(self) -> None:
        """Guard the names of the special methods of the user's classes whose instances are used.

        Python uses a default in place of a missing special method, so a method that is added later changes results.
        """
        for guard in list(self._outside.guards.values()):
            if isinstance(guard, OfType | TensorMetadata):
                self.note_instance(guard.kind)
            elif isinstance(guard, Is) and isinstance(guard.value, type):
                self.note_instance(type(guard.value))
        bases = {id(base): base for kind in self._used_classes.values() for base in self._bases(kind)}
        for base in bases.values():
            if not self._outside.effects.has_written_any(base):
                root = self._outside.root("class", base.__name__, base)
                self._outside.guard(SpecialMethods(root, special_methods(base)))

    def guard_called_method(self, function: types.FunctionType, arguments: tuple[Any, ...]) -> None:
        """Guard the class entry of a function that the program calls, if it is a method of its first argument's class.

        If the function is a method of a descriptor, also guard the class entry of the descriptor.
        """
        if not arguments or self._outside.path_of(function) is not None:
            return
        index = OWNER_INDEX.get(function.__name__)
        if index is not None and len(arguments) > index:
            owner = arguments[index]
            self.guard_descriptor(owner if isinstance(owner, type) else type(owner), arguments[0])
        first = arguments[0]
        if not (is_users_code(function.__code__) or LOCALS in type(first).__qualname__):
            return
        self.note_instance(type(first))
        for kind in (type(first), first) if issubclass(type(first), type) else (type(first),):
            name = self._entry_name(kind, function) or self._special_entry_name(kind, function)
            if name is not None:
                self.guard_defining_class(kind, name)
                break

    def guard_descriptor(self, owner_class: type, descriptor: object) -> None:
        """Guard the class entry whose value is a descriptor that the program uses."""
        for base in self._bases(owner_class):
            for name, unbound in dict_of(base).items():
                if unbound is descriptor:
                    self.guard_defining_class(owner_class, name)
                    return

    def guard_attribute(self, owner: object, name: str) -> None:
        """Guard the class entry of an attribute that the program reads from an object without a path.

        If the object itself has the attribute, guard that its class has no descriptor of this name.
        """
        self.note_instance(type(owner))
        namespace = namespace_of(owner)
        if not isinstance(namespace, dict) or name not in namespace:
            self.guard_defining_class(type(owner), name)
        elif self.is_users(type(owner)):
            self._outside.guard_unhidden(type(owner), name, is_stored=True)

    def guard_defining_class(self, kind: type, name: str) -> None:
        """Guard which base of a class defines a name, and that no earlier base does."""
        if (id(kind), name) in self._seen:
            return
        self._seen.add((id(kind), name))
        self._guard_definer(mro_of(kind), name)

    def guard_super_lookup(self, super_object: object, name: str) -> None:
        """Guard which base defines a name that the program looks up by `super`, or that no base does."""
        get = super.__getattribute__
        this, kind = (get(super_object, attribute) for attribute in ("__thisclass__", "__self_class__"))
        if kind is not None:
            bases = mro_of(kind)
            self._guard_definer(bases[bases.index(this) + 1 :], name)

    def _guard_definer(self, bases: Iterable[type], name: str) -> None:
        """Guard the entry of the first of these bases that defines a name, and that the bases before it lack the name.

        Classes of libraries are guarded only if the user's code has replaced the entry. An entry that the program has
        written needs no guard.
        """
        bases = list(bases)
        definer = next((base for base in bases if name in dict_of(base)), None)
        is_replaced = definer is not None and not self.is_users(definer) and _is_users_entry(dict_of(definer)[name])
        for base in bases:
            is_definer = base is definer
            needs_guard = self.is_users(base) or (is_replaced and not self._outside.is_created_by_program(base))
            if needs_guard and not self._outside.effects.has_stored(base, name):
                root = self._outside.root("class", base.__name__, base)
                if is_definer:
                    self._guard_entry(root.entry(name, dict_of(base)[name]), dict_of(base)[name])
                else:
                    self._outside.guard_absence(root.attribute("__dict__", dict_of(base)), name)
            if is_definer:
                return

    def _guard_entry(self, path: Path, unbound: object) -> None:
        """Guard an entry of a class, and the functions that it wraps."""
        if isinstance(unbound, types.MemberDescriptorType | types.GetSetDescriptorType):
            return
        self._outside.read(path, unbound)
        for part in ATTRIBUTES_OF_WRAPPERS.get(type(unbound), ()):
            function = getattr(unbound, part)
            if function is not None:
                self._outside.read(path.attribute(part, function), function)

    def _entry_name(self, kind: type, function: types.FunctionType) -> str | None:
        """Return the name of the class entry that is a function or wraps it.

        Returns None if there is none, or if the entry with the function's own name is another object.
        """
        bases = list(self._bases(kind))
        named = function.__name__
        for base in bases:
            if named in dict_of(base):
                return named if _is_or_wraps(dict_of(base)[named], function) else None
        return next(
            (name for base in bases for name, unbound in dict_of(base).items() if _is_or_wraps(unbound, function)), None
        )

    def _special_entry_name(self, kind: type, function: types.FunctionType) -> str | None:
        """Return the name of the special method that is this function or wraps it, also in a class of a library.

        Returns None if there is none.
        """
        if (id(kind), id(function)) in self._not_special or issubclass(kind, torch.Tensor):
            return None
        for base in mro_of(kind):
            for name, unbound in dict_of(base).items():
                if name[:2] == "__" and _is_or_wraps(unbound, function):
                    return str(name)
        self._not_special[id(kind), id(function)] = function
        return None

    def _bases(self, kind: type) -> Iterable[type]:
        """Return the user's own classes among a class and its bases."""
        return filter(self.is_users, mro_of(kind))

    def is_users(self, kind: type) -> bool:
        """Whether a class is the user's own, and not created by the program."""
        entry = self._is_users_by_id.get(id(kind))
        if entry is None:
            module = sys.modules.get(kind.__module__) if isinstance(kind.__module__, str) else None
            entry = self._is_users_by_id[id(kind)] = kind, _counts_as_users(kind, module)
        return entry[1] and not self._outside.is_created_by_program(kind)


def _counts_as_users(kind: type, module: object) -> bool:
    """Whether a class is defined in Python by the user's module, or created by a function of any module.

    A library may change a class that its function creates, such as the class of each `torch.fx.GraphModule`, so the
    class counts as the user's.
    """
    if not kind.__flags__ & HEAP_TYPE:
        return False
    if LOCALS in kind.__qualname__:
        return True
    file = getattr(module, "__file__", None)
    return is_users_file(file) if isinstance(file, str) else module is None or kind.__module__ == "__main__"


def _is_users_entry(unbound: object) -> bool:
    """Whether a class entry is a function of the user's code, or wraps one."""
    functions = (part for part in (unbound, *_wrapped_functions(unbound)) if isinstance(part, types.FunctionType))
    return any(is_users_code(function.__code__) for function in functions)


def _is_or_wraps(unbound: object, function: object) -> bool:
    """Whether a class entry is a function or wraps it."""
    return unbound is function or any(part is function for part in _wrapped_functions(unbound))


def _wrapped_functions(unbound: object) -> Iterator[Any]:
    """Yield the functions that a class entry, such as a property, wraps."""
    return (getattr(unbound, name) for name in ATTRIBUTES_OF_WRAPPERS.get(type(unbound), ()))
