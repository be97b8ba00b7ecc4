"""Writes of a program to outside objects: each write gets the guards that it needs, and is logged as an effect."""

from __future__ import annotations

from typing import Any

from thunder_core.frontend.acquire.outside.containers import BLIND, container_base, level_of
from thunder_core.frontend.acquire.outside.effects import PendingWrite
from thunder_core.frontend.acquire.outside.namespaces import is_index_into, is_namespace, length_of
from thunder_core.frontend.acquire.outside.object_guards import CanDelete, Length
from thunder_core.frontend.acquire.outside.outside import Outside
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.acquire.outside.snapshots import can_delete
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.tracing.library.changes.class_entries import ABSENT, dict_of, mro_of

ENTRY_METHODS = ("__setitem__", "__delitem__")


class OutsideWrites:
    """The writes of a program to objects from outside, whose paths are in `outside`."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def set_attribute(self, owner: object, name: str, value: object, level: type | None = None) -> None:
        """Note that the program is about to set an attribute; `level` is the class whose method sets it, or None."""
        self._outside.require_up_to_date(owner)
        path = self._outside.paths.get(id(owner))
        if path is not None:
            self._outside.effects.note_attribute_write("set", path, name, value, level=level)

    def delete_attribute(self, owner: object, name: str, level: type | None = None) -> None:
        """Note that the program is about to delete an attribute; `level` is the class whose method deletes it."""
        self._outside.require_up_to_date(owner)
        path = self._outside.paths.get(id(owner))
        if path is not None:
            self._guard_deletion(path, owner, name)
            self._outside.effects.note_attribute_write("delete", path, name, level=level)

    def _guard_deletion(self, path: Path, owner: object, name: str) -> None:
        """Guard whether an attribute or a variable existed before the program.

        Otherwise the deletion would raise after the computation, or a write and a deletion would have another effect.
        """
        existed = self._outside.effects.attribute_existed(owner, name)
        if existed is not None or can_delete(owner, name):
            self._outside.guard(CanDelete(path, name, existed is not False))

    def call_mutator(
        self, container: object, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], level: type | None = None
    ) -> None:
        """Note that the program is about to call a C method that changes an outside container."""
        self._outside.require_up_to_date(container)
        path = self._outside.paths.get(id(container))
        if path is None or container_base(container) is None:
            return
        if name in ENTRY_METHODS and is_namespace(path) and type(args[0]) is str:
            if name == "__delitem__":
                self._guard_deletion(path, container, args[0])
            self._outside.effects.note_variable_write(path, name, *args)
            return
        if (
            name == "__setitem__"
            and is_index_into(container, args[0])
            and self._outside.has_replaced_item(container, args[0]) is not None
        ):
            self._outside.guard(Length(path, length_of(container)))
        elif name not in BLIND and not (name == "__setitem__" and isinstance(container, dict)):
            self._outside.expand(container)
        self._outside.effects.note_method_call(path, name, args, kwargs, level or level_of(type(container), name))

    def note_failed_write(self, write: PendingWrite) -> None:
        """Remove the effect of a write that has raised. A deletion raises if the name does not exist: guard that."""
        self._outside.effects.retract(write)
        if write.kind == "delete":
            self._note_missing(write.owner, write.name)
        elif write.kind == "__delitem__":
            self._outside.absent(self._outside.paths[id(write.owner)], write.name)

    def _note_missing(self, owner: Any, name: str) -> None:
        """Guard that an object itself has no attribute of that name; its class, or a base of it, may have one."""
        path = self._outside.paths.get(id(owner))
        is_inherited = type_lookup(type(owner), name) is not ABSENT or (
            issubclass(type(owner), type) and any(name in dict_of(base) for base in mro_of(owner))
        )
        if not is_inherited:
            self._outside.note_missing_attribute(owner, name)
        elif path is not None and not can_delete(owner, name) and not self._outside.effects.has_written(owner, name):
            self._outside.guard(CanDelete(path, name, is_held=False))

    def call_changing(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note that the program is about to call a C function that changes the container in its first argument."""
        path = self._outside.paths.get(id(args[0])) if args else None
        if path is not None and container_base(args[0]) is not None:
            self._outside.require_up_to_date(args[0])
            self._outside.expand(args[0])
            self._outside.effects.note_function_call(function, path, args[1:], kwargs)

    def store_global(self, namespace: dict[str, Any], name: str, value: object) -> None:
        """Note that the program is about to set a global variable."""
        self._outside.require_up_to_date(namespace)
        self._outside.effects.note_variable_write(self._outside.globals_root(namespace), "__setitem__", name, value)

    def delete_global(self, namespace: dict[str, Any], name: str) -> None:
        """Note that the program is about to delete a global variable."""
        self._outside.require_up_to_date(namespace)
        path = self._outside.globals_root(namespace)
        self._guard_deletion(path, namespace, name)
        self._outside.effects.note_variable_write(path, "__delitem__", name)
