"""The attributes that objects store themselves, read without code of their classes."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import ItemsView, Mapping
from typing import Any

MISSING = object()


def read_stored(owner: object, name: str) -> Any:
    """Return an attribute of an object without code of its class. A `threading.local` has attributes of each thread."""
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
    """Return the attributes of an object, including those in slots."""
    slots = [name for base in type(value).__mro__ for name in slots_of(base) if name not in ("__dict__", "__weakref__")]
    slots += ["default_factory"] if issubclass(type(value), defaultdict) else []
    attributes = {name: stored_attribute(value, name) for name in slots}
    present = {name: item for name, item in attributes.items() if item is not MISSING}
    return {**present, **(namespace_of(value) or {})}


def pairs_of(mapping: dict[Any, Any]) -> ItemsView[Any, Any]:
    """Return the stored keys and values of a mapping, in its order, without code of its class.

    An `OrderedDict` has an order of its own, which `move_to_end` changes.
    """
    return OrderedDict.items(mapping) if isinstance(mapping, OrderedDict) else dict.items(mapping)


def stored_attribute(value: object, name: str) -> Any:
    """Return an attribute of an object, bypassing a `__getattribute__` of its own class; `MISSING` if there is none."""
    try:
        return read_stored(value, name)
    except AttributeError:
        return MISSING


def slots_of(base: type) -> tuple[str, ...]:
    """Return the names of the slots that a class adds; Python adds the class's name to private names."""
    slots = base.__dict__.get("__slots__", ())
    prefix = f"_{base.__name__.lstrip('_')}"
    names = (slots,) if isinstance(slots, str) else tuple(slots)
    return tuple(prefix + name if name.startswith("__") and not name.endswith("__") else name for name in names)
