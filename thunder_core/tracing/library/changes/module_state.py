"""Record the state of a module that a prologue has read, to detect later whether the module has changed."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from enum import IntEnum
from operator import getitem, itemgetter
from typing import Any

import torch

from thunder_core.foundation.type_flags import HEAP_TYPE
from thunder_core.tracing.library.changes.memory_words import (
    CACHE_LINE,
    DICT_KEYS_OFFSET,
    DICT_VERSION_OFFSET,
    MEMORY,
    TENSOR_POINTER_OFFSET,
    TYPE_OFFSET,
    Words,
    address_of,
    dict_pointer_address,
    word_at,
)
from thunder_core.tracing.library.changes.type_versions import HAS_VERSIONS, OFFSET, assign_version, type_version

NAMESPACE = None  # the key of a step to the `__dict__` of the step's owner
ROOT = -1  # the owner of a step to one of the roots; the key of this step is an index of the roots

# A step to an object: the index of its owner, and the object's key in a dict, its index in a tuple, the name of an
# attribute of a class, or `NAMESPACE`. The module has index 0, and step `i` leads to the object with index `i + 1`.
ReadStep = tuple[int, str | int | None]
DICTS = (dict, OrderedDict)
METADATA_LINES = 3  # cache lines with the metadata of a tensor's implementation in C++


class CannotWatch(Exception):
    """Raised for a module with a part whose changes cannot be detected."""


class ModuleState:
    """The objects that a prologue has read from a module, and the words of memory that change if an object changes.

    The state keeps dicts alive, and has weak references to modules and classes: if one of these is freed, the state is
    released. The state does not refer to tensors: they are alive while their dicts are unchanged. A strong reference
    would keep a replaced weight alive, and `torch.utils.swap_tensors` refuses tensors with weak references.

    `steps` lead from the module and the `roots` to all objects that were read. `indices` select the objects that
    `values` returns. Raises `CannotWatch` if changes of an object cannot be detected.
    """

    def __init__(
        self, module: torch.nn.Module, steps: Sequence[ReadStep], roots: tuple[Any, ...], indices: Sequence[int]
    ) -> None:
        self._module = weakref.ref(module)
        self._is_valid = True
        self._on_freed_object = callback_releasing(self)
        self._references: dict[int, weakref.ref[Any]] = {}
        self._dicts: list[Any] = []
        self._addresses: list[int] = []
        self._tensor_addresses: list[int] = []
        self._prefetched_addresses: list[int] = []
        objects: list[Any] = [module]
        self._watch(module)
        for owner, key in steps:
            objects.append(self._read(roots if owner == ROOT else objects[owner], key))
        self._objects: SelectedObjects | None = SelectedObjects(objects, steps, indices)
        self._pieces = [*Words(self._addresses).pieces, *Words(self._tensor_addresses).pieces]
        self._prefetched_pieces = Words(self._prefetched_addresses).pieces

    def values(self, module: torch.nn.Module) -> Sequence[Any] | None:
        """Return the selected objects; None if the module or a part of it may have changed.

        This prefetches the items of dicts and the metadata of tensors into the processor's cache, because the prologue
        reads them next: reading all of them at once takes less time.
        """
        objects = self._objects
        if objects is None or not self.is_unchanged(module):
            return None
        for word_indices, _ in self._prefetched_pieces:
            if self._is_valid:
                MEMORY[word_indices]
        return objects.values()

    def is_unchanged(self, module: torch.nn.Module) -> bool:
        """Whether the module and all its read parts are certainly unchanged.

        Another thread may free objects during the comparison, which makes the state invalid. CPython switches threads
        only at calls and at the ends of loops, and therefore not between the check of `_is_valid` and the read of a
        piece of memory.
        """
        if self._module() is not module:
            return False
        for word_indices, content in self._pieces:
            if not self._is_valid or MEMORY[word_indices].tobytes() != content:
                return False
        return self._is_valid

    def release(self) -> None:
        """Make the state invalid, and release all objects."""
        self._is_valid = False
        self._dicts = []
        self._objects = None

    def _read(self, owner: Any, key: str | int | None) -> Any:
        """Return the object that a step leads to, and watch it."""
        if key is NAMESPACE:
            value = owner.__dict__
            pointer = dict_pointer_address(owner, value) if type(value) is dict else None
            if pointer is None:
                raise CannotWatch
            self._refer(owner)
            self._addresses.append(pointer)
        elif type(owner) in (dict, tuple):
            value = owner[key]
        elif type(owner) is type and type(key) is str:
            value = type.__getattribute__(owner, key)
        else:
            raise CannotWatch
        self._watch(value)
        return value

    def _watch(self, value: Any) -> None:
        """Watch the items of a dict, the attributes of a class, a tensor, or the class of another object."""
        kind = type(value)
        if kind in DICTS:
            self._dicts.append(value)
            self._addresses.append(address_of(value) + DICT_VERSION_OFFSET)
            keys = word_at(address_of(value) + DICT_KEYS_OFFSET)
            self._prefetched_addresses += [keys, keys + CACHE_LINE] if value else []
        elif kind is type:
            self._watch_class(value)
        elif issubclass(kind, torch.Tensor):
            self._watch_tensor(value)
        elif kind.__flags__ & HEAP_TYPE:
            self._refer(value)
            self._addresses.append(address_of(value) + TYPE_OFFSET)

    def _watch_class(self, kind: type) -> None:
        """Watch the attributes of a class and of its bases: one version covers all of them."""
        assign_version(kind)
        if not HAS_VERSIONS or not type_version(kind).value:
            raise CannotWatch
        self._refer(kind)
        self._addresses.append(address_of(kind) + OFFSET)

    def _watch_tensor(self, tensor: torch.Tensor) -> None:
        """Watch a tensor's class and its pointer to the C++ object, which `torch.utils.swap_tensors` exchanges."""
        with torch._C.DisableTorchFunction():
            if TENSOR_POINTER_OFFSET is None or tensor.is_nested:
                raise CannotWatch
        self._tensor_addresses += [address_of(tensor) + TYPE_OFFSET, address_of(tensor) + TENSOR_POINTER_OFFSET]
        implementation = word_at(address_of(tensor) + TENSOR_POINTER_OFFSET)
        self._prefetched_addresses += [implementation + line * CACHE_LINE for line in range(METADATA_LINES)]

    def _refer(self, value: object) -> None:
        """Add a weak reference to an object, which releases the state when the object is freed."""
        try:
            self._references.setdefault(address_of(value), weakref.ref(value, self._on_freed_object))
        except TypeError:
            raise CannotWatch from None


class Retrieval(IntEnum):
    """A way to retrieve a selected object: as an item of a dict, by a weak reference, or by a strong reference.

    The order is the order in which `SelectedObjects.values` retrieves the objects.
    """

    ITEM = 0
    WEAK = 1
    STRONG = 2


class SelectedObjects:
    """The selected objects of an unchanged module, retrieved without keeping modules or tensors alive."""

    def __init__(self, objects: Sequence[Any], steps: Sequence[ReadStep], indices: Sequence[int]) -> None:
        self._owners: list[Any] = []
        self._keys: list[Any] = []
        self._weak: list[Callable[[], Any]] = []
        self._strong: list[Any] = []
        retrievals = [self._add(objects, steps, index) for index in indices]
        order = sorted(range(len(indices)), key=retrievals.__getitem__)
        positions = sorted(range(len(indices)), key=order.__getitem__)
        self._in_order: Callable[[list[Any]], Sequence[Any]] = (
            list if positions == sorted(positions) else itemgetter(*positions)
        )

    def _add(self, objects: Sequence[Any], steps: Sequence[ReadStep], index: int) -> Retrieval:
        """Add an object, and return how it is retrieved."""
        value = objects[index]
        owner, key = steps[index - 1] if index else (ROOT, NAMESPACE)
        if owner != ROOT and type(objects[owner]) is dict:
            self._owners.append(objects[owner])
            self._keys.append(key)
            return Retrieval.ITEM
        if type(value) not in DICTS and type(value).__weakrefoffset__:
            if isinstance(value, torch.Tensor):
                raise CannotWatch
            self._weak.append(weakref.ref(value))
            return Retrieval.WEAK
        self._strong.append(value)
        return Retrieval.STRONG

    def values(self) -> Sequence[Any]:
        """Return the objects in the order of the `indices` that were passed to the constructor."""
        items = [*map(getitem, self._owners, self._keys)]
        return self._in_order([*items, *[reference() for reference in self._weak], *self._strong])


def callback_releasing(state: ModuleState) -> Callable[[Any], None]:
    """Return a callback for weak references that releases a state, without keeping the state alive."""
    state_reference = weakref.ref(state)

    def release(_: object) -> None:
        state = state_reference()
        if state is not None:
            state.release()

    return release
