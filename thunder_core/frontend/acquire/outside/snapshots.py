"""Snapshots of attributes: functions that restore an attribute, without running user code."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from thunder_core.frontend.acquire.outside.paths import MODULE_TABLES
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.tracing.ir.stored_attributes import MISSING, namespace_of

NON_PERSISTENT_BUFFERS = "_non_persistent_buffers_set"
Restore = Callable[[], None]


def tables_of(owner: object) -> list[dict[str, Any]]:
    """Return the `__dict__` of an object and, for a module, its dicts of parameters, buffers and submodules."""
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
    """Whether an object itself has an attribute: in a dict of attributes, in a slot, or by a C descriptor.

    For an object without such a descriptor and without a dict of attributes, the result is True for any name. (Classes
    have a dict.)
    """
    if issubclass(type(owner), type) or tables_of(owner) or _c_descriptor(owner, name) is not None:
        return can_delete(owner, name)
    return True


def can_delete(owner: object, name: str) -> bool:
    """Whether an object itself stores an attribute, or a namespace an entry, so that the program can delete it.

    An empty slot and an empty cell store no value, even if a `__getattr__` of the class returns a value.
    """
    if type(owner) is dict:
        return name in owner
    if issubclass(type(owner), type):
        return name in vars(owner)
    descriptor = _c_descriptor(owner, name)
    if descriptor is not None:
        return _stored_value(descriptor, owner) is not MISSING
    return any(name in table for table in tables_of(owner))


def attribute_snapshot(owner: Any, name: str, names_at_start: Callable[[dict[str, Any]], Iterable[str]]) -> Restore:
    """Return a function that restores the current value of an attribute.

    `names_at_start(table)` returns the names in a table in their order at the start of the program.
    """
    if issubclass(type(owner), type):
        return _class_snapshot(owner, name)
    descriptor = _c_descriptor(owner, name)
    if descriptor is not None:
        return _descriptor_snapshot(descriptor, owner, name)
    restores = [entry_snapshot(table, name, names_at_start(table)) for table in tables_of(owner)]
    non_persistent = vars(owner).get(NON_PERSISTENT_BUFFERS) if issubclass(type(owner), torch.nn.Module) else None
    was_non_persistent = isinstance(non_persistent, set) and name in non_persistent

    def restore() -> None:
        for restore_entry in restores:
            restore_entry()
        if isinstance(non_persistent, set):
            (non_persistent.add if was_non_persistent else non_persistent.discard)(name)

    return restore


def entry_snapshot(table: dict[str, Any], name: str, names_at_start: Iterable[str]) -> Restore:
    """Return a function that sets `table[name]` to its present value.

    If the name was deleted, the function reorders the table by the names at the start. If the table has no such name
    now, the function deletes the name.
    """
    old = table.get(name, MISSING)

    def restore() -> None:
        if old is MISSING:
            table.pop(name, None)
            return
        was_deleted = name not in table
        table[name] = old
        if was_deleted:
            for earlier_name in [*names_at_start]:
                if earlier_name in table:
                    table[earlier_name] = table.pop(earlier_name)

    return restore


def _c_descriptor(owner: object, name: str) -> Any:
    """Return the C descriptor of an attribute of an object; None for other attributes, and for tensors.

    The trace records writes to attributes of tensors.
    """
    unbound = type_lookup(type(owner), name)
    is_in_c = isinstance(unbound, types.MemberDescriptorType | types.GetSetDescriptorType)
    return unbound if is_in_c and not isinstance(owner, torch.Tensor) else None


def _descriptor_snapshot(descriptor: Any, owner: Any, name: str) -> Restore:
    old = _stored_value(descriptor, owner)

    def restore() -> None:
        if _stored_value(descriptor, owner) is old:  # such as an attribute that cannot be written
            return
        with contextlib.suppress(AttributeError):  # it cannot be written, and is another object at each read
            descriptor.__delete__(owner) if old is MISSING else descriptor.__set__(owner, old)

    return restore


def _stored_value(descriptor: Any, owner: object) -> Any:
    """Return the value of a C descriptor for an object; `MISSING` for an empty slot or cell."""
    try:
        return descriptor.__get__(owner)
    except (AttributeError, ValueError):
        return MISSING


def _class_snapshot(owner: type, name: str) -> Restore:
    old = vars(owner).get(name, MISSING)

    def restore() -> None:
        if old is not MISSING:
            type.__setattr__(owner, name, old)
        elif name in vars(owner):
            type.__delattr__(owner, name)

    return restore
