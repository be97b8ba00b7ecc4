"""Snapshots of attributes: restore an attribute in the table that stores it, without running user code."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from thunder_core.frontend.acquire.outside.paths import MODULE_TABLES
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.tracing.ir.stored_attributes import MISSING, namespace_of

NOT_PERSISTENT = "_non_persistent_buffers_set"
Restore = Callable[[], None]


def tables_of(owner: object) -> list[dict[str, Any]]:
    """Return all dictionaries with an object's attributes, including a module's parameters, buffers and submodules."""
    namespace = namespace_of(owner)
    if namespace is None:
        return []
    if not issubclass(type(owner), torch.nn.Module):
        return [namespace]
    return [namespace, *(namespace[table] for table in MODULE_TABLES if isinstance(namespace.get(table), dict))]


def table_identities(owner: object) -> list[int]:
    """Return the identities of the dicts with an object's attributes, or of the object itself if it has no dict."""
    return [id(table) for table in tables_of(owner)] or [id(owner)]


def has_own(owner: object, name: str) -> bool:
    """Whether an object itself has an attribute: in a dict of attributes, in a slot, or by a descriptor.

    An object that is no class and has no dict of attributes counts as having every attribute that is not a slot.
    """
    if issubclass(type(owner), type) or is_slot(owner, name):
        return can_delete(owner, name)
    return not tables_of(owner) or can_delete(owner, name) or _descriptor(owner, name) is not None


def can_delete(owner: object, name: str) -> bool:
    """Whether an object itself has an attribute, or a namespace has a name, so that deleting it does not raise."""
    if type(owner) is dict:
        return name in owner
    if issubclass(type(owner), type):
        return name in vars(owner)
    if is_slot(owner, name):
        return hasattr(owner, name)  # an empty slot is no attribute
    return any(name in table for table in tables_of(owner))


def is_slot(owner: object, name: str) -> bool:
    """Whether an object has a slot for an attribute, which may be empty."""
    return isinstance(type_lookup(type(owner), name), types.MemberDescriptorType)


def attribute_snapshot(owner: Any, name: str, orders: Callable[[dict[str, Any]], Iterable[str]]) -> Restore:
    """Return a function that restores an attribute's current value; `orders` returns the names of a table in order."""
    if issubclass(type(owner), type):
        return _class_snapshot(owner, name)
    descriptor = _descriptor(owner, name)
    if descriptor is not None:
        return _descriptor_snapshot(descriptor, owner, name)
    restores = [entry_snapshot(table, name, orders(table)) for table in tables_of(owner)]
    passing = vars(owner).get(NOT_PERSISTENT) if issubclass(type(owner), torch.nn.Module) else None
    was_passing = isinstance(passing, set) and name in passing

    def restore() -> None:
        for put in restores:
            put()
        if isinstance(passing, set):
            (passing.add if was_passing else passing.discard)(name)

    return restore


def entry_snapshot(table: dict[str, Any], name: str, order: Iterable[str]) -> Restore:
    """Return a function that restores the current entry of a name in a table, at its position."""
    old = table.get(name, MISSING)

    def restore() -> None:
        if old is MISSING:
            table.pop(name, None)
            return
        moved = name not in table
        table[name] = old
        if moved:
            for other in [*order]:
                if other in table:
                    table[other] = table.pop(other)

    return restore


def _descriptor(owner: object, name: str) -> Any:
    """Return the C descriptor through which an object's attribute is written.

    Tensors' attributes are recorded elsewhere.
    """
    unbound = type_lookup(type(owner), name)
    of_c = isinstance(unbound, types.MemberDescriptorType | types.GetSetDescriptorType)
    return unbound if of_c and not isinstance(owner, torch.Tensor) else None


def _descriptor_snapshot(descriptor: Any, owner: Any, name: str) -> Restore:
    try:
        old = descriptor.__get__(owner)
    except (AttributeError, ValueError):  # an empty slot, or an empty cell
        old = MISSING

    def restore() -> None:
        if old is not MISSING:
            descriptor.__set__(owner, old)
        elif not isinstance(owner, types.CellType) or owner != types.CellType():
            with contextlib.suppress(AttributeError):  # the attribute does not exist if the write has raised
                descriptor.__delete__(owner)

    return restore


def _class_snapshot(owner: type, name: str) -> Restore:
    old = vars(owner).get(name, MISSING)

    def restore() -> None:
        if old is not MISSING:
            type.__setattr__(owner, name, old)
        elif name in vars(owner):
            type.__delattr__(owner, name)

    return restore
