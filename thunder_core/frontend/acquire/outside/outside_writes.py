"""Log a program's writes to outside objects, so that the epilogue can replay them, and add the guards of the replay."""

from __future__ import annotations

from typing import Any

from thunder_core.frontend.acquire.outside.containers import (
    METHODS_INDEPENDENT_OF_CONTENTS,
    container_base,
    overridden_c_class,
)
from thunder_core.frontend.acquire.outside.guards.containers import Length
from thunder_core.frontend.acquire.outside.guards.objects import CanDelete
from thunder_core.frontend.acquire.outside.namespaces import is_index_into, is_namespace, length_of
from thunder_core.frontend.acquire.outside.outside import Outside
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.acquire.outside.snapshots import can_delete
from thunder_core.frontend.acquire.outside.writes.effect import PendingWrite
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.tracing.library.changes.class_entries import ABSENT, dict_of, mro_of

ITEM_METHODS = ("__setitem__", "__delitem__")
FIRST_PARAMETER = "a"  # the name of the list in `bisect.insort`; other functions that change a list take it by position


class OutsideWrites:
    """The writes of a program to outside objects.

    Writes to objects without a path, which the program created, are not logged. The methods raise `CannotReplay` if a
    bound symbol of the trace writes to the outside object, because the object has another state at run time than while
    the program is traced.
    """

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def note_attribute_set(self, owner: object, name: str, value: object, c_class: type | None = None) -> None:
        """Log that the program is about to set an attribute.

        If the class of the owner overrides `__setattr__` in Python, `c_class` is the base class whose method is called.
        """
        self._outside.require_up_to_date(owner)
        path = self._outside.paths.get(id(owner))
        if path is not None:
            self._outside.effects.note_attribute_write("set", path, name, value, c_class=c_class)

    def note_attribute_deletion(self, owner: object, name: str, c_class: type | None = None) -> None:
        """Log that the program is about to delete an attribute.

        If the class of the owner overrides `__delattr__` in Python, `c_class` is the base class whose method is called.
        """
        self._outside.require_up_to_date(owner)
        path = self._outside.paths.get(id(owner))
        if path is not None:
            self._guard_deletion(path, owner, name)
            self._outside.effects.note_attribute_write("delete", path, name, c_class=c_class)

    def _guard_deletion(self, path: Path, owner: object, name: str) -> None:
        """Guard whether an attribute or a variable exists when the call begins.

        The epilogue replays the deletion, which raises if the name does not exist. If the program itself creates the
        name and then deletes it, the name must be absent when the call begins, because the replay leaves no such name.
        There is no guard if the attribute neither exists nor was written, because the deletion then raises.
        """
        existed = self._outside.effects.attribute_existed(owner, name)
        if existed is not None or can_delete(owner, name):
            self._outside.guard(CanDelete(path, name, existed is not False))

    def note_method_call(
        self, container: object, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], c_class: type | None = None
    ) -> None:
        """Log that the program is about to call a C method that changes an outside container.

        The contents of the container are guarded if the effect of the method depends on them. If the method sets an
        item of a list, only the length is guarded. A call that sets or deletes an entry of a namespace is logged as a
        write to a variable. `c_class` is the base class whose C method is called, if the class of the container
        overrides the method.
        """
        self._outside.require_up_to_date(container)
        path = self._outside.paths.get(id(container))
        if path is None or container_base(container) is None or (name in ITEM_METHODS and not args):
            return
        if name in ITEM_METHODS and is_namespace(path) and type(args[0]) is str:
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
        elif name not in METHODS_INDEPENDENT_OF_CONTENTS and not (
            name == "__setitem__" and isinstance(container, dict)
        ):
            self._outside.expand(container)
        self._outside.forget_order(container)
        is_original_again = self._outside.effects.note_method_call(
            path, name, args, kwargs, c_class or overridden_c_class(type(container), name)
        )
        if is_original_again:
            self._outside.read_original_item(path, *args)

    def note_failed_write(self, write: PendingWrite) -> None:
        """Retract a write that raised an error.

        If the write is the deletion of an attribute or a variable, guard that the name is absent when the call begins.
        There is no guard if the program itself has written the name before.
        """
        self._outside.effects.retract(write)
        if write.kind == "delete":
            self._note_missing(write.owner, write.name)
        elif write.kind == "__delitem__" and not self._outside.effects.has_stored(write.owner, write.name):
            self._outside.guard_absence(self._outside.paths[id(write.owner)], write.name)

    def _note_missing(self, owner: Any, name: str) -> None:
        """Guard that an object lacks an attribute.

        If its class has an attribute of this name, guard only that the object itself stores none.
        """
        path = self._outside.paths.get(id(owner))
        is_inherited = type_lookup(type(owner), name) is not ABSENT or (
            issubclass(type(owner), type) and any(name in dict_of(base) for base in mro_of(owner))
        )
        if not is_inherited:
            self._outside.note_missing_attribute(owner, name)
        elif path is not None and not can_delete(owner, name) and not self._outside.effects.has_written(owner, name):
            self._outside.guard(CanDelete(path, name, exists=False))

    def note_function_call(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Log that the program is about to call a C function that changes its first argument, a container."""
        if not args and FIRST_PARAMETER in kwargs:
            args = (kwargs[FIRST_PARAMETER],)
            kwargs = {name: value for name, value in kwargs.items() if name != FIRST_PARAMETER}
        path = self._outside.paths.get(id(args[0])) if args else None
        if path is not None and container_base(args[0]) is not None:
            self._outside.require_up_to_date(args[0])
            self._outside.expand(args[0])
            self._outside.effects.note_function_call(function, path, args[1:], kwargs)

    def note_global_set(self, namespace: dict[str, Any], name: str, value: object) -> None:
        """Log that the program is about to set a global variable."""
        self._outside.require_up_to_date(namespace)
        self._outside.effects.note_variable_write(self._outside.globals_root(namespace), "__setitem__", name, value)

    def note_global_deletion(self, namespace: dict[str, Any], name: str) -> None:
        """Log that the program is about to delete a global variable."""
        self._outside.require_up_to_date(namespace)
        path = self._outside.globals_root(namespace)
        self._guard_deletion(path, namespace, name)
        self._outside.effects.note_variable_write(path, "__delitem__", name)
