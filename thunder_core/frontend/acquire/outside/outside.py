"""Outside objects, which a program reads but has not created: their paths, and guards on the values that it reads."""

from __future__ import annotations

import enum
import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

import torch

from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import CannotReplay
from thunder_core.frontend.acquire.outside.attributes import locate
from thunder_core.frontend.acquire.outside.call_traits import class_when_read, fields_of_call
from thunder_core.frontend.acquire.outside.containers import (
    hashes_in_python,
    index_of,
    is_known_by_identity,
    is_known_item,
    lacks_key,
    mapping_base,
)
from thunder_core.frontend.acquire.outside.effects import EffectLog
from thunder_core.frontend.acquire.outside.guarded_paths import GuardedPaths
from thunder_core.frontend.acquire.outside.guards.containers import HasMember, Keys, Length, Members, MembersThemselves
from thunder_core.frontend.acquire.outside.guards.identities import LacksKey, SameAs
from thunder_core.frontend.acquire.outside.guards.objects import HasState, Lacks, Unbound
from thunder_core.frontend.acquire.outside.guards.values import (
    NUMBERS,
    HasBuiltinValue,
    Identical,
    Is,
    NumberInC,
    OfType,
    base_with_value,
    constant_guard,
)
from thunder_core.frontend.acquire.outside.namespaces import item_path, items_of, length_of
from thunder_core.frontend.acquire.outside.native_kinds import NativeState, is_number_in_c, native_state_of
from thunder_core.frontend.acquire.outside.paths import Path, computed_path, leads_from_draw
from thunder_core.frontend.acquire.outside.sharp import OutsideReads
from thunder_core.frontend.acquire.outside.symbolic import Symbolic, is_only_thread
from thunder_core.frontend.interpreter.lookup import PARTIAL_FIELDS
from thunder_core.frontend.interpreter.native import is_proxy, proxied_object
from thunder_core.tracing.ir.constants import BY_IDENTITY, is_constant, is_plain
from thunder_core.tracing.ir.stored_attributes import namespace_of
from thunder_core.tracing.library.states import has_state, state_of, viewed_mapping

VIEW_CLASSES = frozenset(
    type(getattr(kind(), name)()) for kind in (dict, OrderedDict) for name in ("keys", "values", "items")
)
MAPPING_CLASSES = (dict, types.MappingProxyType)
SYMBOL_CONTAINERS = frozenset({list, dict, OrderedDict, defaultdict})  # containers in which symbols may replace numbers
NUMBERS_WITH_FIXED_HASHES = (bool, int, float, complex)  # their hashes are the same in each process
FIXED_NAMES_OF_MEMBERS = frozenset({"value", "name", "_value_", "_name_"})  # attributes of members of enumerations
NAMESPACE_STEPS = frozenset({"root", "globals", "class"})  # steps to namespaces


class Outside(GuardedPaths):
    """Outside objects by identity, each with its path. Each read of an outside object becomes a guard, once.

    An object without a path has been created by the program or by C code. Reads of such an object need no guard.

    `symbol_at(path)` returns the symbols for the number, or the tuple of numbers, at a path; None if no number is
    symbolic. `before_read_of_draw()` is called before C code reads the state of a random value.
    """

    def __init__(
        self,
        symbolic: Symbolic,
        symbol_at: Callable[[Path], Any],
        before_read_of_draw: Callable[[], None],
        outside_reads: OutsideReads | None,
    ) -> None:
        super().__init__()
        self.effects = EffectLog()
        self.outside_reads = outside_reads  # only if the program is functional
        self.symbolic = symbolic
        self._symbol_at = symbol_at
        self._before_read_of_draw = before_read_of_draw
        # By identity: objects whose state while tracing is not their state at a call, and the error for a use of them.
        self.outdated: dict[int, tuple[Any, CannotReplay]] = {}
        self.failure: CannotReplay | None = None
        self._expanded: set[int] = set()  # identities of containers with guards on all their direct items
        self._completely_guarded: set[int] = set()  # identities of objects with guards on all contents
        self._guarded_reads: set[tuple[int, str]] = set()  # guarded reads: the identity of the owner, and the name

    @property
    def is_functional(self) -> bool:
        """Whether the program is traced as a functional program, which may read only its arguments."""
        return self.outside_reads is not None

    def require_up_to_date(self, value: object) -> None:
        """Raise `CannotReplay` if the program may no longer read or write an object."""
        if id(value) in self.outdated:
            self.failure = self.outdated[id(value)][1]
            raise self.failure

    def forbid_use(self, value: object, error: CannotReplay) -> None:
        """Forbid later uses of an object whose state while tracing is not its state at a call: they raise `error`."""
        self.outdated[id(value)] = value, error

    def note_later_reads(self) -> None:
        """From now on, note the guards of reads in `later_guards` too, even for values that are guarded already."""
        self.later_guards = {}
        self._guarded_reads.clear()

    def read(self, path: Path, value: object) -> None:
        """Guard a value that the program has read at a path. The first path of an object becomes its path.

        Another path to the same object is guarded to lead to the same object.
        """
        kind = class_when_read(value)
        if self.outside_reads is not None and not issubclass(kind, BY_IDENTITY):
            self.outside_reads.note(path)
        if is_constant(value):
            self.guard(constant_guard(path, value))
            if isinstance(value, enum.Enum):
                self.paths.setdefault(id(value), path)  # a member may have attributes and a mutable value
            return
        known_path = self.paths.get(id(value))
        if known_path not in (None, path) and (known_path.parent is not None or known_path.step == "root"):
            self.guard(SameAs(path, known_path))
            return
        if known_path is path:
            return
        self.paths[id(value)] = path
        if is_proxy(value):
            self.guard(OfType(path, kind))
            self.read_parts(path, value)
        elif is_number_in_c(kind):
            self.guard(NumberInC(path, value))
        elif issubclass(kind, BY_IDENTITY):
            self.guard(Is(path, value))
            self.register_cells(path, value)
        elif not issubclass(kind, torch.Tensor):
            self.guard(OfType(path, kind))
            base = base_with_value(kind)
            if base is not None:
                self.guard(HasBuiltinValue(path, base))
            self.read_parts(path, value)

    def read_parts(self, path: Path, value: object) -> None:
        """Guard the parts of an object that a call reads: the function of a partial or the object of a proxy."""
        if is_proxy(value):
            self.read(path.child("proxied", "", proxied_object(value)), proxied_object(value))
            return
        names = fields_of_call(type(value))
        if issubclass(type(value), functools.partial) and len(names) < len(PARTIAL_FIELDS):  # a subclass hides a field
            self.guard(Is(path, value))
        for name in names:
            part = getattr(value, name)
            self.read(path.attribute(name, part), part)
            self.expand(part)

    def note_attribute_read(self, owner: object, name: str, value: object) -> None:
        """Guard the attribute `owner.name`, which the program has read."""
        if self.outdated:
            self.require_up_to_date(owner)
        path = self.paths.get(id(owner))
        key = (id(owner), name)
        if path is None or key in self._guarded_reads or self.effects.has_written(owner, name):
            return
        if name in FIXED_NAMES_OF_MEMBERS and isinstance(owner, enum.Enum):
            if is_plain(value):
                return
            name = "_value_" if vars(owner).get("_value_") is value else name
        self._guarded_reads.add(key)
        attribute_path = locate(self, path, name, value)
        if attribute_path is not None:
            self.read(attribute_path, value)

    def note_dereference(self, reference: object, value: object) -> None:
        """Guard the object of an outside weak reference, which the program has dereferenced."""
        path = self.paths.get(id(reference))
        if path is not None:
            self.read(path.child("referent", "", value), value)

    def note_stored_read(self, owner: object, name: str, value: object) -> None:
        """Guard a stored attribute that a `__getattribute__` of the program has read."""
        path = self.paths.get(id(owner))
        namespace = namespace_of(owner)
        if path is None or self.effects.has_written(owner, name) or not isinstance(namespace, dict):
            return
        if name in namespace and namespace[name] is value:
            self.read(path.entry(name, value), value)
        elif name == "__dict__" and value is namespace:
            self.read(path.attribute(name, value), value)

    def note_missing_attribute(self, owner: object, name: str) -> None:
        """Guard that an object lacks an attribute that the program has looked up, or that a cell lacks its contents."""
        self.require_up_to_date(owner)
        path = self.paths.get(id(owner))
        if path is not None and not self.effects.has_written(owner, name):
            self.guard(Unbound(path) if type(owner) is types.CellType else Lacks(path, name))

    def symbolic_path(self, owner: Any, key: Any, value: Any, *, is_item: bool) -> Path | None:
        """Return the path to a value that the program is reading, if the value is a symbolic number; otherwise None.

        The value is `owner[key]` if `is_item` is set, and otherwise the attribute `owner.key`.
        """
        path = self.paths.get(id(owner))
        if path is None or not self._may_be_symbolic(value) or not is_constant(key):
            return None
        if is_item and (id(owner) in self._expanded or lacks_key(owner, key)):
            return None
        if self.has_replaced_item(owner, key) is not False if is_item else self.effects.has_written(owner, key):
            return None
        if is_item and issubclass(type(owner), list | tuple) and type(key) is int and key < 0:
            length = length_of(owner)
            self.guard(Length(path, length))
            key %= length
        number_path = self._item_path(path, key, value) if is_item else locate(self, path, key, value)
        return number_path if number_path is not None and self.symbolic.includes(number_path) else None

    def _may_be_symbolic(self, value: object) -> bool:
        return type(value) in NUMBERS and self.symbolic.may_have_symbols and not self.is_functional

    def is_symbolic(self, path: Path, value: object) -> bool:
        """Whether the value at a path is a symbolic number."""
        return self._may_be_symbolic(value) and self.symbolic.includes(path)

    def has_replaced_item(self, container: object, key: object) -> bool | None:
        """Whether the program has replaced an item of an outside container; None if that is unknown.

        It is unknown after a method that may have changed any item, and for a key whose `__eq__` is user code.
        """
        identity = id(container)
        if self.effects.has_stored(container, key):
            return True
        if identity not in self.effects.originals:
            return False
        stored = self.effects.stored_keys[identity]
        return None if stored is None or not is_known_item(container, key) else index_of(container, key) in stored

    def note_item_read(self, container: Any, key: object, value: object) -> None:
        """Guard the item `container[key]`, which the program has read."""
        self.require_up_to_date(container)
        path = self.paths.get(id(container))
        kind = type(container)  # not isinstance, which reads the container's own `__class__`
        if path is None or id(container) in self._expanded or issubclass(kind, torch.Tensor):
            return
        is_replaced = self.has_replaced_item(container, key)
        if is_replaced is None:
            self.expand(container)
        elif is_replaced:
            return
        elif lacks_key(container, key):
            self.note_lookup(container, key)  # `__missing__` has returned the value
        elif issubclass(kind, MAPPING_CLASSES) and (is_constant(key) or self.path_of_key(key) is not None):
            self.read(self._item_path(path, key, value), value)
        elif issubclass(kind, list | tuple) and type(key) is int:
            length = length_of(container)
            if key < 0:
                self.guard(Length(path, length))
            self.read(self._item_path(path, key % length, value), value)
        else:
            self.expand(container)

    def forget_order(self, container: object) -> None:
        """Guard the members of a set without their order, because undoing a write of the program changes the order."""
        for kind in (Members, MembersThemselves):
            key = (kind, self.paths[id(container)])
            if isinstance(guard := self.guards.get(key), Members | MembersThemselves):
                self.guards[key] = replace(guard, is_ordered=False)

    def read_original_item(self, path: Path, key: Any, value: Any) -> None:
        """Guard the value that an item of the mapping at a path has at the start of the program."""
        self.read(self._item_path(path, key, value), value)

    def note_lookup(self, container: dict[Any, Any], key: Any) -> None:
        """Guard the item at a key that the program has looked up in a mapping, or that the key is missing."""
        self.require_up_to_date(container)
        path = self.paths.get(id(container))
        if path is None or id(container) in self._expanded:
            return
        key_path = self.path_of_key(key)
        is_replaced = self.has_replaced_item(container, key)
        if is_replaced is None or not (is_constant(key) or (key_path is not None and not hashes_in_python(key))):
            self.expand(container)
        elif is_replaced:
            return
        elif dict.__contains__(container, key):
            self.note_item_read(container, key, dict.__getitem__(container, key))
        elif key_path is not None:
            self.guard(LacksKey(path, key_path))
        else:
            self.guard_absence(path, key)

    def note_membership_test(self, container: Any, key: object) -> None:
        """Guard whether a set contains a constant or a class, which the program has checked."""
        self.require_up_to_date(container)
        path = self.paths.get(id(container))
        if path is None or id(container) in self._expanded:
            return
        if id(container) in self.effects.originals:
            self.expand(container)
        else:
            self.guard(HasMember(path, key, key in container))

    def expand_keys(self, container: object) -> None:
        """Guard the keys or members of an outside container, but not the values."""
        self.require_up_to_date(container)
        path = self.paths.get(id(container))
        if path is None or id(container) in self._expanded:
            return
        if not isinstance(container, dict) or id(container) in self.effects.originals:
            self.expand(container)
            return
        base = mapping_base(container)
        keys = tuple(base.keys(container))
        self.guard(Keys(path, base, keys, type(container)))
        self._read_keys(path, base, keys)

    def expand(self, container: object, excluded_keys: Collection[Any] = ()) -> None:
        """Guard all direct items of an outside container, because C code is about to read them.

        The keys, the length or the members are guarded, and each item, except items at `excluded_keys` (keys or
        indices). The state of a native object is guarded as a whole.
        """
        if self.outdated:
            self.require_up_to_date(container)
        identity = id(container)
        path = self.paths.get(identity)
        if path is None or identity in self._expanded:
            return
        self._expanded.add(identity)
        self.guard_state(container)
        self._read_contents(container, path, excluded_keys)

    def _read_contents(self, container: Any, path: Path, excluded_keys: Collection[Any]) -> None:
        """Guard the keys, the length or the members that an outside container has before the program, and its items."""
        kind = type(container)  # not isinstance, which reads the container's own `__class__`
        original_container = self.effects.items_at_start(container)
        if issubclass(kind, dict):
            base = mapping_base(original_container)
            self.guard(Keys(path, base, tuple(base.keys(original_container)), kind))
            self._read_keys(path, base, tuple(base.keys(original_container)))
            for key, item in list(base.items(original_container)):
                if key not in excluded_keys:
                    self._read_item(container, path, key, item)
        elif issubclass(kind, list | tuple | deque):
            self.guard(Length(path, length_of(original_container)))
            if kind is deque:
                self.note_attribute_read(container, "maxlen", container.maxlen)
            for index, item in enumerate(items_of(original_container)):
                if index not in excluded_keys:
                    self._read_item(container, path, index, item)
        elif issubclass(kind, set | frozenset):
            self._read_members(path, tuple(items_of(original_container)))
        elif issubclass(kind, types.MappingProxyType):
            self.guard(Keys(path, dict, tuple(original_container), dict))
            for key, item in original_container.items():
                self.read(path.item(key, item), item)
        elif kind in VIEW_CLASSES:
            mapping = viewed_mapping(original_container)
            self.paths.setdefault(id(mapping), computed_path(viewed_mapping, (path,), mapping))
            self.expand(mapping)

    def _read_item(self, container: Any, path: Path, key: Any, item: Any) -> None:
        """Guard an item that C code is about to read, or replace the item by a symbol while the program is traced.

        Symbols replace symbolic numbers, and tuples with symbolic numbers, in lists and dicts that the program has not
        changed and that no other thread can see.
        """
        item_path = self._item_path(path, key, item)
        if self._may_hold_symbols(container, path) and (symbol := self._symbol_at(item_path)) is not None:
            store = list.__setitem__ if type(container) is list else mapping_base(container).__setitem__
            store(container, key, symbol)
            self.effects.add_undo(lambda: store(container, key, item))
        else:
            self.read(item_path, item)

    def _may_hold_symbols(self, container: object, path: Path) -> bool:
        """Whether symbols may replace the numbers in an outside container, so that C code sees symbols."""
        is_namespace = path.step in NAMESPACE_STEPS or path.key == "__dict__"
        is_changed = id(container) in self.effects.originals
        is_allowed = (
            self.symbolic.may_have_symbols
            and self.symbolic.in_containers
            and not self.is_functional
            and is_only_thread()
        )
        return is_allowed and type(container) in SYMBOL_CONTAINERS and not is_changed and not is_namespace

    def _read_keys(self, path: Path, base: type, keys: tuple[Any, ...]) -> None:
        """Guard the keys of a mapping that are objects, each by its position."""
        for index, key in enumerate(keys):
            if not is_plain(key):
                self.read(path.child("keys", base, keys).item(index, key), key)

    def _read_members(self, path: Path, members: tuple[Any, ...]) -> None:
        """Guard the members of a set, and add a path to each member that is an object."""
        objects = [member for member in members if not is_plain(member)]
        is_changed = id(path.value) in self.effects.originals
        if all(map(is_known_by_identity, objects)):
            has_fixed_order = all(type(member) in NUMBERS_WITH_FIXED_HASHES for member in members)
            self.guard(Members(path, members, has_fixed_order and not is_changed))
        else:
            self.guard(MembersThemselves(path, members, not is_changed))
        for member in objects:
            self.paths.setdefault(id(member), path.child("member", id(member), member))
            self.register_cells(self.paths[id(member)], member)

    def guard_state(self, value: object) -> None:
        """Guard the state of a native object (implemented in C) that C code is about to read or change.

        Raises `CannotReplay` if the program has set an attribute that is part of the state.
        """
        path = self.paths.get(id(value))
        if path is None:
            return
        if has_state(value) and (HasState, path) not in self.guards:
            if self.effects.has_written_any(value):
                self.failure = CannotReplay(
                    f"the program sets an attribute of {path}, {object_of_class(type(value))}, and calls a "
                    "C function that reads it",
                    fix="set the attribute outside the compiled program",
                )
                raise self.failure
            if leads_from_draw(path):
                self._before_read_of_draw()
            self.guard(HasState(path, state_of(value)))
            self.effects.watch_state(path)
        elif native_state_of(type(value)) is NativeState.SAME:
            self.guard(Identical(path, value))

    def _item_path(self, path: Path, key: object, value: object) -> Path:
        """Return the path to an item.

        If the key is an outside object, the path to the item contains the path to the key.
        """
        key_path = None if is_constant(key) else self.path_of(key)
        return item_path(path, key, value) if key_path is None else path.at_key(key_path, value)
