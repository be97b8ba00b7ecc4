"""Complete reads of outside objects: guards on everything that C code may find, and on the absence of anything else."""

from __future__ import annotations

import types
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.frontend.acquire.outside.call_traits import is_shallow, may_hash_tensors
from thunder_core.frontend.acquire.outside.containers import is_known_by_identity
from thunder_core.frontend.acquire.outside.function_reads import FunctionReads
from thunder_core.frontend.acquire.outside.guards import TensorMetadata
from thunder_core.frontend.acquire.outside.namespaces import NESTING, values_of
from thunder_core.frontend.acquire.outside.native_kinds import NativeState, native_state_of
from thunder_core.frontend.acquire.outside.object_guards import HasFact, Keys
from thunder_core.frontend.acquire.outside.outside import VIEW_CLASSES
from thunder_core.frontend.acquire.outside.paths import MODULE_TABLES, Path
from thunder_core.tracing.capture.torch_facts.wrappers import is_wrapper, parts_of_wrapper
from thunder_core.tracing.ir.constants import BY_IDENTITY, is_plain
from thunder_core.tracing.ir.proxy import tensor_proxy
from thunder_core.tracing.ir.stored_attributes import namespace_of
from thunder_core.tracing.library.changes.class_entries import dict_of, mro_of
from thunder_core.tracing.library.objects import is_native
from thunder_core.tracing.library.states import viewed_mapping

# C attributes about where an exception was raised, which its text and its copies do not contain.
LEFT_OUT = frozenset({"__traceback__", "__context__", "__cause__", "__suppress_context__", "__dict__", "__weakref__"})
MEMBERS = (types.MemberDescriptorType, types.GetSetDescriptorType)
KNOWN_BY_NAMES = (type, types.ModuleType, types.FunctionType)  # only the attributes that the program names are read
CHANGEABLE = (torch.Tensor, torch.nn.Parameter, torch.nn.Module)  # classes of PyTorch that users extend
WITH_MEMORY = (torch.Tensor, torch.UntypedStorage)


class WholeReads(FunctionReads):
    """The outside objects, including reads of several values at once by C functions and by wrapper subclasses."""

    def expand_whole(self, value: object, reader: object = None) -> None:
        """Guard a value that C code is about to read with all its contents: expand each outside container in it.

        Tensors in it are guarded to be different objects if the C function `reader` may hash or compare them.
        """
        pending, seen = [value], set[int]()
        while pending:
            current = pending.pop()
            number = id(current)
            parts_of = self._parts_function(type(current))
            if parts_of is None or number in seen or number in self._whole:
                self.guard_state(current)
                if not issubclass(type(current), torch.Tensor) or may_hash_tensors(reader):
                    self.identify(current)
                continue
            (self._whole if number in self.paths else seen).add(number)  # only the ids of outside objects stay valid
            pending += parts_of(current)

    def expand_for(self, function: object, values: Iterable[object], *, hashes: bool = True) -> None:
        """Guard values that a C function is about to read: their direct items, or all of their contents.

        If `hashes` is False, the function neither hashes tensors nor compares them by identity.
        """
        is_whole, reader = not is_shallow(function), function if hashes else None
        for value in values:
            if is_whole:
                self.expand_whole(value, reader)
            else:
                self.expand(value)

    def expand_key(self, key: object) -> None:
        """Guard a key that C code looks up in a mapping of the program, which compares the key with other keys."""
        if issubclass(type(key), tuple):
            self.expand_whole(key)
        else:
            self.identify(key)

    def identify(self, value: object) -> None:
        """Note the identity of an outside object that C code is about to hash or compare, if its class has no equality.

        Bound methods are equal if their objects are the same.
        """
        owner = value.__self__ if type(value) is types.MethodType else value
        if self.path_of(owner) is None or issubclass(type(owner), BY_IDENTITY):
            return
        if owner is not value or is_known_by_identity(owner):
            self.note_identity_read(owner)

    def _parts_function(self, kind: type) -> Callable[[Any], Iterable[Any]] | None:
        """Return the function that guards and returns the contents of a class's instances; None if there are none."""
        if issubclass(kind, NESTING) or kind is types.MappingProxyType or kind in VIEW_CLASSES:
            return self._items
        if kind is slice:
            return parts_of_slice
        return self.attributes if native_state_of(kind) is NativeState.ATTRIBUTES else None

    def _items(self, container: Any) -> Iterable[Any]:
        self.expand(container)
        kind = type(container)
        if kind is defaultdict and not isinstance(container.default_factory, types.FunctionType):
            self.note_attribute_read(container, "default_factory", container.default_factory)  # which `repr` shows
        if issubclass(kind, NESTING):
            return [*values_of(container)]
        return [*container.values()] if kind is types.MappingProxyType else [viewed_mapping(container)]

    def attributes(self, value: object) -> list[Any]:
        """Guard all attributes of an object, which C code is about to read, and return their values."""
        values = [member for name in members_of(type(value)) for member in self._member(value, name)]
        namespace = namespace_of(value)
        if namespace is None or isinstance(value, KNOWN_BY_NAMES):
            return values
        written = [name for name in namespace if self.effects.has_written(value, name)]
        self.note_attribute_read(value, "__dict__", namespace)
        self.expand(namespace, excluded_keys=written)
        return [*values, *namespace.values()]

    def _member(self, value: object, name: str) -> Iterable[Any]:
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
            if id(current) in seen or is_plain(current) or isinstance(current, KNOWN_BY_NAMES):
                continue
            seen.add(id(current))
            if issubclass(type(current), WITH_MEMORY):
                with_memory.append(current)
            self.expand_whole(current)
            pending += self.attributes(current)
            if issubclass(type(current), NESTING):
                pending += values_of(current)
        return with_memory

    def wrapper(self, tensor: Any) -> None:
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
                self.wrapper(inner)

    def names(self, value: object, is_users: Callable[[type], bool]) -> None:
        """Guard the names that an object has, itself and from its class, because C code is about to list them."""
        namespace, path = namespace_of(value), self.path_of(value)
        if namespace is not None and path is not None and not isinstance(value, type):
            self.note_attribute_read(value, "__dict__", namespace)
            self._keys(path.attribute("__dict__", namespace), self.effects.items_at_start(namespace))
            for table in MODULE_TABLES if isinstance(value, torch.nn.Module) else ():
                self.note_attribute_read(value, table, namespace[table])
                self.expand_keys(namespace[table])
        for kind in mro_of(value if isinstance(value, type) else type(value)):
            if is_native(kind) or not (is_users(kind) or kind in CHANGEABLE):
                continue
            if not self.effects.has_written_any(kind):
                root = self.root("class", kind.__name__, kind)
                self._keys(root.attribute("__dict__", dict_of(kind)), dict_of(kind))

    def _keys(self, path: Path, mapping: Any) -> None:
        self.guard(Keys(path, dict, tuple(mapping), dict))


def members_of(kind: type) -> Iterator[str]:
    """Yield the names of members besides `__dict__`: slots, and C attributes of exceptions."""
    member_types = MEMBERS if issubclass(kind, BaseException) else MEMBERS[:1]
    for base in mro_of(kind):
        for name, unbound in dict_of(base).items():
            if isinstance(unbound, member_types) and name not in LEFT_OUT:
                yield name


def parts_of_slice(value: slice) -> tuple[Any, Any, Any]:
    """Return the parts of a slice that C code reads."""
    return value.start, value.stop, value.step
