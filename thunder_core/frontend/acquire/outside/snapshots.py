"""Snapshots of attributes: how one is put back as it was, in whichever table it lives, and without the user's code."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from thunder_core.frontend.acquire.outside.paths import MODULE_TABLES
from thunder_core.frontend.interpreter.lookup import type_lookup

MISSING = object()
NOT_PERSISTENT = "_non_persistent_buffers_set"
Restore = Callable[[], None]


def namespace_of(owner: Any) -> dict[str, Any] | None:
    """The dictionary in which an object keeps its attributes; None for classes and for objects with slots alone."""
    try:
        namespace = object.__getattribute__(owner, "__dict__")
    except AttributeError:
        return None
    return namespace if isinstance(namespace, dict) else None


def tables_of(owner: Any) -> list[dict[str, Any]]:
    """All dictionaries in which an object keeps attributes: those of a module's parameters and the like, too."""
    namespace = namespace_of(owner)
    if namespace is None:
        return []
    if not isinstance(owner, torch.nn.Module):
        return [namespace]
    return [namespace, *(namespace[table] for table in MODULE_TABLES if isinstance(namespace.get(table), dict))]


def has_own(owner: Any, name: str) -> bool:
    """Whether an object itself has an attribute, in whichever table it lives."""
    if isinstance(owner, type):
        return name in vars(owner)
    tables = tables_of(owner)
    return not tables or any(name in table for table in tables) or _descriptor(owner, name) is not None


def attribute_snapshot(owner: Any, name: str, orders: Callable[[dict[str, Any]], Iterable[str]]) -> Restore:
    """A function that puts one attribute back as it is now; `orders` gives the names of a table in their order."""
    if isinstance(owner, type):
        return _class_snapshot(owner, name)
    descriptor = _descriptor(owner, name)
    if descriptor is not None:
        return _descriptor_snapshot(descriptor, owner, name)
    restores = [entry_snapshot(table, name, orders(table)) for table in tables_of(owner)]
    passing = vars(owner).get(NOT_PERSISTENT) if isinstance(owner, torch.nn.Module) else None
    was_passing = isinstance(passing, set) and name in passing

    def restore() -> None:
        for put in restores:
            put()
        if isinstance(passing, set):
            (passing.add if was_passing else passing.discard)(name)

    return restore


def entry_snapshot(table: dict[str, Any], name: str, order: Iterable[str]) -> Restore:
    """A function that puts one name back as it is now in a table, and at its place."""
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


def _descriptor(owner: Any, name: str) -> Any:
    """The descriptor of C's through which an object's attribute is written; tensors have theirs recorded elsewhere."""
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
            with contextlib.suppress(AttributeError):  # where the write has raised, nothing is there
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
