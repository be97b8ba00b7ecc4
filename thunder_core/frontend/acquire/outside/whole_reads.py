"""Guards for C code that may read all contents of an outside object, including guards against added contents."""

from __future__ import annotations

import sys
import types
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.frontend.acquire.outside.call_traits import is_shallow, may_hash_tensors
from thunder_core.frontend.acquire.outside.containers import compares_in_python, is_known_by_identity
from thunder_core.frontend.acquire.outside.function_reads import FunctionReads
from thunder_core.frontend.acquire.outside.guards.containers import Keys
from thunder_core.frontend.acquire.outside.guards.tensors import HasFact, TensorMetadata
from thunder_core.frontend.acquire.outside.namespaces import KEYED, NESTING, items_of, values_of
from thunder_core.frontend.acquire.outside.native_kinds import NativeState, native_state_of
from thunder_core.frontend.acquire.outside.outside import VIEW_CLASSES
from thunder_core.frontend.acquire.outside.paths import MODULE_TABLES, Path
from thunder_core.frontend.acquire.outside.sharp import is_users_code
from thunder_core.frontend.interpreter.operators import PRIMITIVE_TYPES
from thunder_core.frontend.interpreter.reach import is_row
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.torch_facts.wrappers import is_wrapper, parts_of_wrapper
from thunder_core.tracing.ir.constants import BY_IDENTITY, is_plain
from thunder_core.tracing.ir.proxy import tensor_proxy
from thunder_core.tracing.ir.stored_attributes import namespace_of
from thunder_core.tracing.library.changes.class_entries import dict_of, mro_of
from thunder_core.tracing.library.objects import is_native
from thunder_core.tracing.library.states import viewed_mapping

# Attributes that affect neither the message nor the copies of an exception.
SKIPPED_MEMBERS = frozenset(
    {"__traceback__", "__context__", "__cause__", "__suppress_context__", "__dict__", "__weakref__"}
)
MEMBER_CLASSES = (types.MemberDescriptorType, types.GetSetDescriptorType)
READ_BY_NAME = (type, types.ModuleType, types.FunctionType)  # C code never reads all of their attributes
CLASSES_USERS_CHANGE = (torch.Tensor, torch.nn.Parameter, torch.nn.Module)  # users add attributes to these classes
TENSOR_CLASSES = frozenset({torch.Tensor, torch.nn.Parameter, FakeTensor})  # C code reads no contents of them
INSPECTED_ATTRIBUTES = ("__annotations__", "__doc__", "__dict__")  # of functions
INSPECTED_ENTRIES = ("__annotations__", "__doc__", "__init__", "__new__", "__signature__")  # of classes
CLASSES_WITH_MEMORY = (torch.Tensor, torch.UntypedStorage)


class WholeReads(FunctionReads):
    """The outside objects, with guards for C functions that read all contents of an object, and for wrapper tensors."""

    def expand_whole(self, value: object, reader: object = None) -> None:
        """Guard a value and all its contents, such as the items of each container, which C code is about to read.

        If the C function `reader` may hash or compare tensors, the identities of the tensors in the value are guarded.
        """
        pending, seen = [value], set[int]()
        while pending:
            current = pending.pop()
            identity = id(current)
            if type(current) in PRIMITIVE_TYPES or (identity not in self.paths and is_row(current)):
                continue
            parts_of = self._parts_function(type(current))
            if parts_of is None or identity in seen or identity in self._completely_guarded:
                self.guard_state(current)
                if not issubclass(type(current), torch.Tensor) or may_hash_tensors(reader):
                    self.note_compared_object(current)
                continue
            # `paths` keeps outside objects alive, so that their ids stay valid.
            (self._completely_guarded if identity in self.paths else seen).add(identity)
            pending += parts_of(current)

    def expand_for(self, function: object, values: Iterable[object], *, hashes: bool = True) -> None:
        """Guard values that a C function is about to read.

        For a shallow function, only the direct items of the values are guarded; for other functions, all contents. If
        `hashes` is False, the function neither hashes tensors nor compares them by identity.
        """
        if is_shallow(function):
            for value in values:
                self.expand(value)
            return
        for value in values:
            kind = type(value)
            if kind in PRIMITIVE_TYPES or (kind in TENSOR_CLASSES and not (hashes and may_hash_tensors(function))):
                continue  # has no contents
            self.expand_whole(value, function if hashes else None)

    def expand_key(self, key: object) -> None:
        """Guard a key that C code is about to look up in a mapping, and so to compare with other keys."""
        if issubclass(type(key), tuple):
            self.expand_whole(key)
        else:
            self.note_compared_object(key)

    def guard_compared_keys(self, *values: object) -> bool:
        """Guard the keys of each mapping and the members of each set that C code may compare by a Python `__eq__`.

        Return whether there are such keys or members.
        """
        is_compared = False
        for value in values:
            if issubclass(type(value), KEYED) and compares_in_python(value):
                is_compared = True
                self.expand(value)
                for key in list(items_of(value)):
                    self.expand_whole(key)
        return is_compared

    def note_compared_object(self, value: object) -> None:
        """Note that C code is about to compare an outside object by identity, if its class defines no equality.

        For a bound method, this is the object to which the method is bound.
        """
        owner = value.__self__ if type(value) is types.MethodType else value
        if self.path_of(owner) is None or issubclass(type(owner), BY_IDENTITY):
            return
        if owner is not value or is_known_by_identity(owner):
            self.note_identity_read(owner)

    def _parts_function(self, kind: type) -> Callable[[Any], Iterable[Any]] | None:
        """Return the function that guards and returns the contents of an instance of a class; None without contents."""
        if issubclass(kind, NESTING) or kind is types.MappingProxyType or kind in VIEW_CLASSES:
            return self._guard_items
        if kind is slice:
            return parts_of_slice
        if kind is weakref.ref:
            return self._guard_compared_referent
        return self.guard_attributes if native_state_of(kind) is NativeState.ATTRIBUTES else None

    def _guard_items(self, container: Any) -> Iterable[Any]:
        """Guard the items of a container, and return the items that may have contents."""
        self.expand(container)
        kind = type(container)
        if kind is defaultdict and not isinstance(container.default_factory, types.FunctionType):
            self.note_attribute_read(container, "default_factory", container.default_factory)  # `repr` contains it
        if issubclass(kind, NESTING):
            return [*values_of(container)]
        return [*container.values()] if kind is types.MappingProxyType else [viewed_mapping(container)]

    def _guard_compared_referent(self, reference: Any) -> Iterable[Any]:
        """Guard the object of a weak reference, and return it in a tuple; empty if no Python code compares it."""
        referent = weakref.ref.__call__(reference)
        if referent is None or is_known_by_identity(referent):
            return ()
        self.note_dereference(reference, referent)
        return (referent,)

    def guard_attributes(self, value: object) -> list[Any]:
        """Guard all attributes of an object, which C code is about to read, and return their values."""
        values = [member for name in members_of(type(value)) for member in self._guard_member(value, name)]
        namespace = namespace_of(value)
        if namespace is None or isinstance(value, READ_BY_NAME):
            return values
        written = [name for name in namespace if self.effects.has_written(value, name)]
        self.note_attribute_read(value, "__dict__", namespace)
        self.expand(namespace, excluded_keys=written)
        return [*values, *namespace.values()]

    def _guard_member(self, value: object, name: str) -> Iterable[Any]:
        """Guard a slot, or another attribute in C memory, and return its value in a tuple; empty if it is missing."""
        try:
            member = object.__getattribute__(value, name)
        except AttributeError:
            self.note_missing_attribute(value, name)
            return ()
        self.note_attribute_read(value, name, member)
        return (member,)

    def expand_deeply(self, value: object) -> list[Any]:
        """Guard an object that C code is about to copy, with everything reachable through attributes and items.

        Return the reachable tensors and storages.
        """
        pending, seen = [value], set[int]()
        with_memory = []
        while pending:
            current = pending.pop()
            if id(current) in seen or is_plain(current) or isinstance(current, (*READ_BY_NAME, SymbolicNumber)):
                continue  # C code receives the plain number of this call in place of a symbolic number
            seen.add(id(current))
            if issubclass(type(current), CLASSES_WITH_MEMORY):
                with_memory.append(current)
            self.expand_whole(current)
            pending += self.guard_attributes(current)
            if issubclass(type(current), NESTING):
                pending += values_of(current)
        return with_memory

    def guard_wrapper(self, tensor: Any) -> None:
        """Guard the metadata of a wrapper subclass of Tensor, and note the paths to its inner tensors."""
        path = self.paths.get(id(tensor))
        if path is None or (TensorMetadata, path) in self.guards:
            return
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            self.guard(TensorMetadata(path, type(tensor), tensor_proxy("", tensor), tensor.layout))
            context = tensor.__tensor_flatten__()[1]
        if context is not None:
            self.guard(HasFact(path, "__tensor_flatten__()[1]", context))
        for name, inner in parts_of_wrapper(tensor):
            self.read(path.attribute(name, inner), inner)
            if is_wrapper(inner):
                self.guard_wrapper(inner)

    def guard_inspected(self, value: object, is_users: Callable[[type], bool]) -> None:
        """Guard the attributes that functions of `inspect` and `typing` read from a function, a method or a class.

        Only the user's functions and classes are guarded, because libraries do not change theirs. `is_users` says
        whether a class is the user's.
        """
        pending, seen = [value], set[int]()
        while pending:
            current: Any = pending.pop()
            if id(current) in seen:
                continue
            seen.add(id(current))
            if isinstance(current, types.MethodType | classmethod | staticmethod):
                pending.append(current.__func__)
            elif type(current) is types.FunctionType and self.path_of(current) is not None:
                pending += self._guard_inspected_function(current)
            elif isinstance(current, type):
                pending += self._guard_inspected_class(current, is_users)

    def _guard_inspected_function(self, function: types.FunctionType) -> list[Any]:
        """Guard the code, the defaults and the attributes of a function, and return the values of its attributes."""
        if not is_users_code(function.__code__):
            return []
        self.guard_defaults(function)
        for name in INSPECTED_ATTRIBUTES:
            self.note_attribute_read(function, name, getattr(function, name))
            self.expand(getattr(function, name))
        self.guard_names_in_annotations(function.__annotations__, function.__globals__)
        return [*vars(function).values()]

    def _guard_inspected_class(self, kind: type, is_users: Callable[[type], bool]) -> Iterator[Any]:
        """Guard the names and the constructors of a user's class and its bases, and yield the constructors."""
        for base in filter(is_users, mro_of(kind)):
            if self.effects.has_written_any(base):
                continue
            entries, root = dict_of(base), self.root("class", base.__name__, base)
            self._guard_keys(root.attribute("__dict__", entries), entries)
            for name in INSPECTED_ENTRIES:
                if name in entries:
                    self.read(root.entry(name, entries[name]), entries[name])
                    self.expand(entries[name])
                    if name == "__annotations__":
                        namespace = getattr(sys.modules.get(base.__module__), "__dict__", {})
                        self.guard_names_in_annotations(entries[name], namespace)
                    yield entries[name]

    def guard_names(self, value: object, is_users: Callable[[type], bool]) -> None:
        """Guard the names of the attributes of an object and of its classes, which C code is about to list."""
        namespace, path = namespace_of(value), self.path_of(value)
        if namespace is not None and path is not None and not isinstance(value, type):
            self.note_attribute_read(value, "__dict__", namespace)
            self._guard_keys(path.attribute("__dict__", namespace), self.effects.items_at_start(namespace))
            for table in MODULE_TABLES if isinstance(value, torch.nn.Module) else ():
                self.note_attribute_read(value, table, namespace[table])
                self.expand_keys(namespace[table])
        for kind in mro_of(value if isinstance(value, type) else type(value)):
            if is_native(kind) or not (is_users(kind) or kind in CLASSES_USERS_CHANGE):
                continue
            if not self.effects.has_written_any(kind):
                root = self.root("class", kind.__name__, kind)
                self._guard_keys(root.attribute("__dict__", dict_of(kind)), dict_of(kind))

    def _guard_keys(self, path: Path, mapping: Any) -> None:
        """Guard the keys of the namespace at a path."""
        self.guard(Keys(path, dict, tuple(mapping), dict))


def members_of(kind: type) -> Iterator[str]:
    """Yield the names of a class's slots and, for exceptions, of other attributes in C memory."""
    member_types = MEMBER_CLASSES if issubclass(kind, BaseException) else MEMBER_CLASSES[:1]
    for base in mro_of(kind):
        for name, unbound in dict_of(base).items():
            if isinstance(unbound, member_types) and name not in SKIPPED_MEMBERS:
                yield name


def parts_of_slice(value: slice) -> tuple[Any, Any, Any]:
    """Return the parts of a slice that C code reads."""
    return value.start, value.stop, value.step
