"""Reads of outside objects as a whole: all that C code may find in one is guarded, and that there is nothing else."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from thunder_core.frontend.acquire.outside.containers import container_base
from thunder_core.frontend.acquire.outside.namespaces import NESTING, items_of
from thunder_core.frontend.acquire.outside.native_kinds import NativeAnswer, answer_of
from thunder_core.frontend.acquire.outside.object_guards import Keys
from thunder_core.frontend.acquire.outside.outside import Outside
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.acquire.outside.snapshots import namespace_of
from thunder_core.frontend.interpreter.lookup import dict_of, mro_of
from thunder_core.tracing.ir.constants import is_plain

# Attributes in C that lead to where an exception was raised; its text and its copies do not tell of them.
LEFT_OUT = frozenset({"__traceback__", "__context__", "__cause__", "__suppress_context__", "__dict__", "__weakref__"})
MEMBERS = (types.MemberDescriptorType, types.GetSetDescriptorType)
KNOWN_BY_NAMES = (type, types.ModuleType, types.FunctionType)  # what is read of them is what the program names


class WholeReads(Outside):
    """The outside objects, of which functions of C may read more than one thing at once."""

    def expand_whole(self, value: Any) -> None:
        """C code is about to see a value and all that is in it, however deep: expand each outside container."""
        pending, seen = [value], set[int]()
        while pending:
            held = pending.pop()
            number = id(held)
            parts_of = self._parts_function(type(held))
            if parts_of is None or number in seen or number in self._whole:
                self.examine(held)
                continue
            (self._whole if number in self.paths else seen).add(number)  # only outside objects outlive this
            pending += parts_of(held)

    def _parts_function(self, kind: type) -> Callable[[Any], Iterable[Any]] | None:
        """The function that guards what C code finds in an instance of a class, and gives it; None for nothing."""
        if issubclass(kind, NESTING):
            return self._items
        return self.attributes if answer_of(kind) is NativeAnswer.ATTRIBUTES else None

    def _items(self, container: Any) -> Iterable[Any]:
        self.expand(container)
        return dict.values(container) if issubclass(type(container), dict) else items_of(container)

    def attributes(self, value: Any) -> list[Any]:
        """C code is about to read all attributes of an object: guard which it has, and each of them; their values."""
        values = [held for name in members_of(type(value)) for held in self._member(value, name)]
        namespace = namespace_of(value)
        if namespace is None or isinstance(value, KNOWN_BY_NAMES):
            return values
        written = [name for name in namespace if self.effects.has_written(value, name)]
        self.attribute(value, "__dict__", namespace)
        self.expand(namespace, leaving=written)
        return [*values, *namespace.values()]

    def _member(self, value: Any, name: str) -> Iterable[Any]:
        try:
            held = object.__getattribute__(value, name)
        except AttributeError:
            self.missing(value, name)
            return ()
        self.attribute(value, name, held)
        return (held,)

    def expand_deeply(self, value: Any) -> None:
        """C code is about to copy an object with all that attributes and items lead to from it."""
        pending, seen = [value], set[int]()
        while pending:
            held = pending.pop()
            if id(held) in seen or is_plain(held) or isinstance(held, KNOWN_BY_NAMES):
                continue
            seen.add(id(held))
            self.expand_whole(held)
            pending += self.attributes(held)
            if (base := container_base(held)) is not None or isinstance(held, tuple | frozenset):
                pending += dict.values(held) if base is dict else items_of(held)

    def names(self, value: Any, is_users: Callable[[type], bool]) -> None:
        """C code is about to list the names that an object has, by itself and by its class: guard which these are."""
        namespace, path = namespace_of(value), self.path_of(value)
        if namespace is not None and path is not None and not isinstance(value, type):
            self.attribute(value, "__dict__", namespace)
            self._keys(path.attribute("__dict__", namespace), self.effects.held(namespace))
        for kind in filter(is_users, mro_of(value if isinstance(value, type) else type(value))):
            if not self.effects.has_written_any(kind):
                root = self.root("class", kind.__name__, kind)
                self._keys(root.attribute("__dict__", dict_of(kind)), dict_of(kind))

    def _keys(self, path: Path, mapping: Any) -> None:
        self.guard(Keys(path, dict, tuple(mapping), dict))


def members_of(kind: type) -> Iterator[str]:
    """The names of what instances of a class hold beside their `__dict__`: slots, and what exceptions keep in C."""
    kept = MEMBERS if issubclass(kind, BaseException) else MEMBERS[:1]
    for base in mro_of(kind):
        for name, unbound in dict_of(base).items():
            if isinstance(unbound, kept) and name not in LEFT_OUT:
                yield name
