"""The state of a module that a prologue has read: kept to recognize that nothing has changed since."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import getitem, itemgetter
from typing import Any

import torch

from thunder_core.tracing.library.changes.memory_words import (
    CACHE_LINE,
    DICT_KEYS,
    DICT_VERSION,
    HEAP_TYPE,
    MEMORY,
    TENSOR_SLOT,
    TYPE,
    Words,
    address_of,
    dict_slot,
    word_at,
)
from thunder_core.tracing.library.changes.type_versions import HAS_VERSIONS, OFFSET, assign_version, type_version

NAMESPACE = None  # the key of a step to an object's `__dict__`
ROOT = -1  # the owner of a step to one of the roots, whose key is an index

# A step to one more object: the number of its owner, and the key under which the owner has it. The owner is a dict, a
# tuple, or a class, whose attribute is read.
ReadStep = tuple[int, str | int | None]
DICTS = (dict, OrderedDict)
METADATA_LINES = 3  # cache lines of a tensor in C++


class CannotWatch(Exception):
    """Raised for a module with a part whose changes cannot be detected."""


class ModuleState:
    """The objects that a prologue has read from a module, and the words of memory that change if an object changes.

    Dicts are kept alive, and modules and classes are referred to weakly: when one of them is freed, the state is
    dropped. Tensors are alive as long as their dicts are unchanged; they are not referred to, because a replaced weight
    has to be freed, and `torch.utils.swap_tensors` refuses tensors with weak references.

    The module has number 0, and each of the `steps` leads to the object with the next number, from an earlier object or
    from one of the `roots`. `numbers` choose the objects that calls need. Raises `CannotWatch`.
    """

    def __init__(
        self, module: torch.nn.Module, steps: Sequence[ReadStep], roots: tuple[Any, ...], numbers: Sequence[int]
    ) -> None:
        self._module = weakref.ref(module)
        self._is_valid = True
        self._drop = dropping(self)
        self._references: dict[int, weakref.ref[Any]] = {}
        self._held: list[Any] = []
        self._addresses: list[int] = []
        self._tensor_addresses: list[int] = []
        self._cached_addresses: list[int] = []
        objects: list[Any] = [module]
        self._watch(module)
        for owner, key in steps:
            objects.append(self._read(roots if owner == ROOT else objects[owner], key))
        self._objects: ObjectsInOrder | None = ObjectsInOrder(objects, steps, numbers)
        self._pieces = [*Words(self._addresses).pieces, *Words(self._tensor_addresses).pieces]
        self._cached_pieces = Words(self._cached_addresses).pieces

    def values(self, module: torch.nn.Module) -> Sequence[Any] | None:
        """Return the objects with the chosen numbers; None if the module or a part of it may have changed.

        Some memory is read only to have it in the cache, all at once: the items of dicts, and the metadata of tensors,
        which the prologue compares afterwards.
        """
        objects = self._objects
        if objects is None or not self.is_unchanged(module):
            return None
        for indices, _ in self._cached_pieces:
            if self._is_valid:
                MEMORY[indices]
        return objects.values()

    def is_unchanged(self, module: torch.nn.Module) -> bool:
        """Whether the module and all parts that were read are certainly unchanged.

        Another thread may free objects meanwhile, which makes the state invalid. CPython changes threads only at calls
        and at the ends of loops, and so not between the look at `_is_valid` and the read of a piece of memory.
        """
        if self._module() is not module:
            return False
        for indices, values in self._pieces:
            if not self._is_valid or not (MEMORY[indices] == values).all():
                return False
        return self._is_valid

    def drop(self) -> None:
        """Release all objects."""
        self._is_valid = False
        self._held = []
        self._objects = None

    def _read(self, owner: Any, key: str | int | None) -> Any:
        """Return the object that a step leads to, and watch it."""
        if key is NAMESPACE:
            value = owner.__dict__
            slot = dict_slot(owner, value) if type(value) is dict else None
            if slot is None:
                raise CannotWatch
            self._refer(owner)
            self._addresses.append(slot)
        elif type(owner) in (dict, tuple):
            value = owner[key]
        elif type(owner) is type and type(key) is str:
            value = type.__getattribute__(owner, key)
        else:
            raise CannotWatch
        self._watch(value)
        return value

    def _watch(self, value: Any) -> None:
        """Watch the changeable parts of an object: the items of a dict, the attributes of a class, or its class."""
        kind = type(value)
        if kind in DICTS:
            self._held.append(value)
            self._addresses.append(address_of(value) + DICT_VERSION)
            keys = word_at(address_of(value) + DICT_KEYS)
            self._cached_addresses += [keys, keys + CACHE_LINE] if value else []
        elif kind is type:
            self._watch_class(value)
        elif issubclass(kind, torch.Tensor):
            self._watch_tensor(value)
        elif kind.__flags__ & HEAP_TYPE:
            self._refer(value)
            self._addresses.append(address_of(value) + TYPE)

    def _watch_class(self, kind: type) -> None:
        """Watch the attributes of a class, also of its bases."""
        assign_version(kind)
        if not HAS_VERSIONS or not type_version(kind).value:
            raise CannotWatch
        self._refer(kind)
        self._addresses.append(address_of(kind) + OFFSET)

    def _watch_tensor(self, tensor: torch.Tensor) -> None:
        """Watch the class of a tensor, and its tensor in C++, which `torch.utils.swap_tensors` exchanges."""
        with torch._C.DisableTorchFunction():
            if TENSOR_SLOT is None or tensor.is_nested:
                raise CannotWatch
        self._tensor_addresses += [address_of(tensor) + TYPE, address_of(tensor) + TENSOR_SLOT]
        own = word_at(address_of(tensor) + TENSOR_SLOT)
        self._cached_addresses += [own + line * CACHE_LINE for line in range(METADATA_LINES)]

    def _refer(self, value: object) -> None:
        """Refer to an object weakly."""
        try:
            self._references.setdefault(address_of(value), weakref.ref(value, self._drop))
        except TypeError:
            raise CannotWatch from None


class ObjectsInOrder:
    """Chosen objects of a module that is unchanged: items of its dicts, dicts, modules, and values such as numbers."""

    def __init__(self, objects: Sequence[Any], steps: Sequence[ReadStep], numbers: Sequence[int]) -> None:
        self._owners: list[Any] = []
        self._keys: list[Any] = []
        self._references: list[Callable[[], Any]] = []
        self._others: list[Any] = []
        groups = [self._add(objects, steps, number) for number in numbers]
        order = sorted(range(len(numbers)), key=groups.__getitem__)
        positions = sorted(range(len(numbers)), key=order.__getitem__)
        self._in_order: Callable[[list[Any]], Sequence[Any]] = (
            list if positions == sorted(positions) else itemgetter(*positions)
        )

    def _add(self, objects: Sequence[Any], steps: Sequence[ReadStep], number: int) -> int:
        """Add an object to one of three groups, and return the number of the group."""
        value = objects[number]
        owner, key = steps[number - 1] if number else (ROOT, NAMESPACE)
        if owner != ROOT and type(objects[owner]) is dict:
            self._owners.append(objects[owner])
            self._keys.append(key)
            return 0
        if type(value) not in DICTS and type(value).__weakrefoffset__:
            if isinstance(value, torch.Tensor):
                raise CannotWatch
            self._references.append(weakref.ref(value))
            return 1
        self._others.append(value)
        return 2

    def values(self) -> Sequence[Any]:
        """Return the objects."""
        items = [*map(getitem, self._owners, self._keys)]
        return self._in_order([*items, *[reference() for reference in self._references], *self._others])


def dropping(state: ModuleState) -> Callable[[Any], None]:
    """Return a callback of weak references that drops a state, without keeping the state alive."""
    reference = weakref.ref(state)

    def drop(_: object) -> None:
        state = reference()
        if state is not None:
            state.drop()

    return drop
