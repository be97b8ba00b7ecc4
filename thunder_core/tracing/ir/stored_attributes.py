"""Read the attributes that objects store, without running Python code of their classes (`__getattribute__`)."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import ItemsView, Mapping
from types import MemberDescriptorType
from typing import Any

MISSING = object()


def read_stored(owner: object, name: str) -> Any:
    """Return an attribute that an object stores, without running a `__getattribute__` of its class."""
    # Only the method of `threading.local` itself finds the attributes of this thread.
    base = threading.local if issubclass(type(owner), threading.local) else object
    return base.__getattribute__(owner, name)


def namespace_of(owner: object) -> dict[str, Any] | None:
    """Return the `__dict__` of an object; None for classes and for objects that have only slots."""
    try:
        namespace = read_stored(owner, "__dict__")
    except AttributeError:
        return None
    return namespace if isinstance(namespace, dict) else None


def attributes_of(value: object) -> Mapping[str, Any]:
    """Return the attributes that an object stores, in its `__dict__` and in slots."""
    slots = [name for base in type(value).__mro__ for name in slots_of(base) if name not in ("__dict__", "__weakref__")]
    slots += ["default_factory"] if issubclass(type(value), defaultdict) else []
    attributes = {name: stored_attribute(value, name) for name in slots}
    present = {name: item for name, item in attributes.items() if item is not MISSING}
    return {**present, **(namespace_of(value) or {})}


def pairs_of(mapping: dict[Any, Any]) -> ItemsView[Any, Any]:
    """Return the stored keys and values of a dict in its order, without running an `items` method of its class.

    An `OrderedDict` has an order of its own, which `move_to_end` changes and `dict.items` ignores.
    """
    return OrderedDict.items(mapping) if isinstance(mapping, OrderedDict) else dict.items(mapping)


def stored_attribute(value: object, name: str) -> Any:
    """Return the result of `read_stored`, or `MISSING` if the object has no such attribute."""
    try:
        return read_stored(value, name)
    except AttributeError:
        return MISSING


def slots_of(base: type) -> tuple[str, ...]:
    """Return the names of the slots that a class adds, in the order of its `__slots__`.

    Python adds the name of the class to private names (`__x`). If the class was renamed, or if its `__slots__` was an
    iterator, the names are taken from the descriptors in the class.
    """
    if "__slots__" not in base.__dict__:
        return ()
    slots = base.__dict__["__slots__"]
    prefix = f"_{stripped}" if (stripped := base.__name__.lstrip("_")) else ""
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    declared = [prefix + name if name.startswith("__") and not name.endswith("__") else name for name in names]
    existing = [name for name, entry in base.__dict__.items() if type(entry) is MemberDescriptorType]
    return (*(name for name in declared if name in existing), *(name for name in existing if name not in declared))
