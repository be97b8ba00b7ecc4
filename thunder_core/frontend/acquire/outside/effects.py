"""The log of a program's writes to outside objects.

While the program is traced, the interpreter performs the writes. Thunder undoes the writes when tracing ends, and the
epilogue replays the logged writes at each call.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import CannotReplay
from thunder_core.frontend.acquire.outside.containers import (
    copy_mutable_arguments,
    index_of,
    is_known_item,
    overridden_c_class,
    plain_copy,
    restore_items,
    size_of_list_or_set,
)
from thunder_core.frontend.acquire.outside.paths import Path, leads_from_draw
from thunder_core.frontend.acquire.outside.snapshots import (
    attribute_snapshot,
    entry_snapshot,
    has_own,
    table_identities,
    tables_of,
)
from thunder_core.frontend.acquire.outside.writes.effect import AttributeWrite, Effect, PendingWrite
from thunder_core.frontend.interpreter.lookup import python_method
from thunder_core.tracing.ir.stored_attributes import MISSING
from thunder_core.tracing.library.changes.class_entries import mro_of
from thunder_core.tracing.library.states import put_buffer_back, state_of, state_restorer


class EffectLog:
    """The writes of one run, in order, and the functions that undo them.

    An effect is logged just before the program makes the write, and is then the `pending_write`. If the write raises,
    the caller passes the pending write to `retract`. Each action of the program that may write (a call of C code, a
    store, a deletion) begins with `forget_pending_write`, so that its error retracts no write of an earlier action.

    Five tables describe the changes, by the identities of objects. An *entry* is the identity of a dict of attributes
    with the name of an attribute; without such a dict, the identity is that of the object.

    - `originals` has a plain copy of each container from before the first method call that changes it.
    - `_tables_at_start` has a copy of each dict of attributes from before the first write of an attribute.
    - `_written_entries` are the entries that were set or deleted; `_created_entries` did not exist at the start.
    - `stored_keys` has the keys of each container's items that were set, or None after a change of another kind.
    """

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.originals: dict[int, Any] = {}
        self.stored_keys: dict[int, set[Any] | None] = {}
        self.pending_write: PendingWrite | None = None
        self.write_count = 0  # all logged writes, whether or not they replaced an earlier effect
        self._tables_at_start: dict[int, dict[str, Any]] = {}
        self._written_entries: set[tuple[int, str]] = set()
        self._created_entries: set[tuple[int, str]] = set()
        self._written_names: set[str] = set()  # the names of all entries that were written
        self._undo: list[Callable[[], object]] = []
        self._watched_states: list[tuple[Path, Any]] = []  # native objects, with their states before a call

    # ---- queries of the log -----------------------------------------------------------------

    def items_at_start(self, container: object) -> Any:
        """Return the items of a container at the start of the program: a plain copy, or the unchanged container."""
        return self.originals.get(id(container), self._tables_at_start.get(id(container), container))

    def has_written(self, owner: object, name: str) -> bool:
        """Whether the program has written an attribute of an object, or a class attribute that the object inherits."""
        if name not in self._written_names and not self.originals:
            return False
        tables = tables_of(owner)
        if not self._written_entries.isdisjoint([(id(holder), name) for holder in (owner, *tables)]):
            return True
        if self.originals and any(self._differs(table, name) for table in tables):
            return True
        classes = mro_of(owner if isinstance(owner, type) else type(owner))
        is_own = any(name in table for table in tables)  # an own attribute hides an attribute of the class
        return not is_own and not self._written_entries.isdisjoint([(id(base), name) for base in classes])

    def attribute_existed(self, owner: object, name: str) -> bool | None:
        """Whether an attribute existed at the start of the program; None if the program has not written it."""
        entries = {(table, name) for table in table_identities(owner)}
        return None if self._written_entries.isdisjoint(entries) else self._created_entries.isdisjoint(entries)

    def has_written_any(self, owner: object) -> bool:
        """Whether the program has written any attribute of a class, or of another object without a `__dict__`."""
        return any(identity == id(owner) for identity, _ in self._written_entries)

    def written_values(self) -> list[Any]:
        """Return the arguments of all effects, which contain the written values."""
        return [(effect.arguments, dict(effect.keywords)) for effect in self.effects]

    def has_stored(self, table: object, name: object) -> bool:
        """Whether the program has written the entry with this name in a table of attributes."""
        return type(name) is str and (id(table), name) in self._written_entries

    def has_changed_entry(self, table: dict[str, Any], name: str) -> bool:
        """Whether the program has written the entry with this name, itself or by a method that changes the dict."""
        return self.has_stored(table, name) or self._differs(table, name)

    def _differs(self, table: dict[str, Any], name: str) -> bool:
        """Whether an entry of a `__dict__` differs from before the first call of a method that changes the dict."""
        original = self.originals.get(id(table))
        return original is not None and original.get(name, MISSING) is not table.get(name, MISSING)

    # ---- writes ---------------------------------------------------------------------------------------------

    def note_attribute_write(
        self, kind: AttributeWrite, owner: Path, name: str, *value: Any, c_class: type | None = None
    ) -> None:
        """Log that an attribute of an outside object is about to be set or deleted; `kind` is `set` or `delete`.

        The effect replaces an earlier assignment of the attribute if no effect in between may use the attribute. A
        deletion is not logged if an earlier logged deletion has the same result, or if the attribute did not exist at
        the start and no logged assignment creates it.
        """
        entries = [(table, name) for table in table_identities(owner.value)]
        if not self._written_entries.intersection(entries) and not has_own(owner.value, name):
            self._created_entries.update(entries)
        self._undo.append(attribute_snapshot(owner.value, name, self._table_at_start))
        first_entries = frozenset(entries) - self._written_entries
        self._written_entries |= first_entries
        self._written_names.add(name)
        unused_writes = self._unused_writes(owner, name)
        overwritten = unused_writes.pop() if unused_writes and unused_writes[-1].kind == "set" else None
        replaced = None
        if overwritten is not None:  # no effect uses the value of the last assignment, so it is not replayed
            replaced = (self.effects.index(overwritten), overwritten)
            self.effects.remove(overwritten)
        is_absent_again = (
            overwritten is not None
            and self._created_entries.issuperset(entries)
            and not any(effect.changes_attribute(owner, name) for effect in self.effects)
        )
        is_logged = kind == "set" or not (unused_writes or is_absent_again)
        effect = Effect(kind, owner, name, value, c_class=c_class) if is_logged else None
        self._begin_write(owner.value, kind, name, effect, replaced, first_entries)

    def _begin_write(
        self,
        owner: object,
        kind: str,
        name: str,
        effect: Effect | None,
        replaced: tuple[int, Effect] | None = None,
        first_entries: frozenset[tuple[int, str]] = frozenset(),
    ) -> None:
        """Log the effect of a write that is about to be made, and make it the pending write."""
        if effect is not None:  # in the place of a replaced assignment, so that new attributes keep their order
            index = len(self.effects) if replaced is None or kind == "delete" else replaced[0]
            self.effects.insert(index, effect)
        self.write_count += 1
        size = size_of_list_or_set(owner)
        self.pending_write = PendingWrite(owner, kind, name, effect, replaced, first_entries, size)

    def forget_pending_write(self) -> None:
        """Forget the pending write. Each action that may write begins with this call."""
        self.pending_write = None

    def retract(self, write: PendingWrite) -> None:
        """Remove the effect of a write that raised an error, and restore the effect that the write had replaced.

        If the write may have changed its owner before the error, its effect becomes a `partial` effect instead.
        """
        self.forget_pending_write()
        if write.effect is not None:
            index = self.effects.index(write.effect)
            partial = [replace(write.effect, kind="partial")] if write.may_be_partial else []
            self.effects[index : index + 1] = partial
        if write.replaced is not None:
            self.effects.insert(*write.replaced)
        self._written_entries -= write.first_entries

    def replay_order_of_items(self, write: PendingWrite) -> None:
        """After a list was sorted by Python code, make the epilogue assign the sorted items instead of sorting again.

        The same holds for a C function such as `heapq.heapify`. The contents of the list are guarded, so the order is
        the same at each call. The epilogue must not call the Python code that compares the items, because this code may
        read objects that the program has changed after the sort.
        """
        effect = write.effect
        if effect is None or effect.owner is None or not issubclass(type(write.owner), list):
            return
        items = list(list.__iter__(write.owner))
        if effect.name != "sort" and effect.kind != "function":
            return
        if effect.keywords.get("key") is not None or any(python_method(type(item), "__lt__") for item in items):
            c_class = overridden_c_class(type(write.owner), "__setitem__")
            ordered = Effect("call", effect.owner, "__setitem__", (slice(None), items), c_class=c_class)
            self.effects[self.effects.index(effect)] = ordered

    def _unused_writes(self, owner: Path, name: str) -> list[Effect]:
        """Return the writes of an attribute since the last effect that may have used the attribute, in order."""
        tables = tables_of(owner.value)
        effects: list[Effect] = []
        for effect in reversed(self.effects):
            if effect.changes_attribute(owner, name):
                effects.append(effect)
            elif effect.may_call_python() or any(effect.is_on(table) for table in tables):
                break
        return effects[::-1]

    def note_method_call(
        self,
        owner: Path,
        name: str,
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        c_class: type | None = None,
    ) -> bool:
        """Log that the program is about to call a method that changes an outside container.

        An assignment of an item replaces an earlier assignment of the item if no effect in between may use the item. If
        the assignment then restores the original value of the item, it is not logged, and the result is True: the
        program is valid only for this original value.
        """
        self._copy_original(owner.value)
        arguments = copy_mutable_arguments(name, arguments)
        effect = Effect("call", owner, name, arguments, dict(keywords), c_class)
        replaced = self._overwritten_write(effect)
        if replaced is not None:
            self.effects.remove(replaced[1])
        is_original_again = replaced is not None and self._restores_original(effect)
        self._begin_write(owner.value, "call", name, None if is_original_again else effect, replaced)
        self._note_stored_key(owner.value, name, arguments)
        return is_original_again

    def _overwritten_write(self, write: Effect) -> tuple[int, Effect] | None:
        """Return the index and the effect of the last logged write of the dict item that `write` sets.

        Returns None if there is no such effect, or if a later effect may use the item.
        """
        if write.owner is None or not write.sets_item() or write.arguments[0] not in self._original(write):
            return None
        for index in reversed(range(len(self.effects))):
            effect = self.effects[index]
            if effect.owner is None or any(table is write.owner.value for table in tables_of(effect.owner.value)):
                return None
            if effect.owner.value is write.owner.value:
                if not effect.sets_item():
                    return None
                if effect.arguments[0] == write.arguments[0]:
                    return index, effect
            elif effect.may_call_python():
                return None
        return None

    def _restores_original(self, write: Effect) -> bool:
        """Whether a write restores the original value of a dict item that no other effect writes."""
        if self._original(write)[write.arguments[0]] is not write.arguments[1]:
            return False
        container = write.owner.value if write.owner is not None else None
        effects_on_container = (effect for effect in self.effects if effect.is_on(container))
        return all(effect.sets_item() and effect.arguments[0] != write.arguments[0] for effect in effects_on_container)

    def _original(self, write: Effect) -> Any:
        """Return the copy of the written container from before its first change."""
        return self.originals[id(write.owner.value)] if write.owner is not None else {}

    def _note_stored_key(self, container: object, name: str, arguments: tuple[Any, ...]) -> None:
        """Note the key of the item that `__setitem__` sets; for any other method, note that all items may change."""
        keys = self.stored_keys.setdefault(id(container), set())
        is_single_item = (
            name == "__setitem__" and type(container) in (dict, list) and is_known_item(container, arguments[0])
        )
        if keys is None or not is_single_item:
            self.stored_keys[id(container)] = None
        else:
            keys.add(index_of(container, arguments[0]))

    def note_function_call(
        self, function: Callable[..., Any], owner: Path, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> None:
        """Log that a C function is about to change an outside container, which is its first argument.

        `arguments` are the arguments after the container.
        """
        self._copy_original(owner.value)
        self.stored_keys[id(owner.value)] = None
        effect = Effect("function", owner, function.__name__, arguments, dict(keywords), function=function)
        self._begin_write(owner.value, "function", function.__name__, effect)

    def note_variable_write(self, namespace: Path, method: str, name: str, *value: Any) -> None:
        """Log that `method` is about to set or delete a variable of a namespace, such as a module's globals.

        Undoing the write restores only this variable.
        """
        self._undo.append(entry_snapshot(namespace.value, name, self._table_at_start(namespace.value)))
        first_entries = frozenset({(id(namespace.value), name)}) - self._written_entries
        if first_entries and name not in namespace.value:
            self._created_entries |= first_entries
        self._written_entries |= first_entries
        self._written_names.add(name)
        c_class = overridden_c_class(type(namespace.value), method)  # the program bypasses an overriding method
        effect = Effect("call", namespace, method, (name, *value), c_class=c_class)
        self._begin_write(namespace.value, method, name, effect, None, first_entries)

    def note_print(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """Log a call of `print`."""
        self.effects.append(Effect("print", None, "print", arguments, dict(keywords)))

    def note_stream_write(self, stream: Path, method: str, texts: tuple[str, ...]) -> None:
        """Log a write to a stream of the process, such as `sys.stdout`."""
        self.effects.append(Effect("call", stream, method, texts))

    def add_epilogue_call(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Log a call of a function that the epilogue makes after the effects that have been logged so far."""
        self.effects.append(Effect("function", None, function.__name__, arguments, function=function))

    def remove_epilogue_calls(self, function: Callable[..., Any], owner: object, count: int) -> None:
        """Remove the last `count` epilogue calls of a function with the first argument `owner`.

        The program has undone the actions that these calls would replay.
        """
        indices = [
            index
            for index, effect in enumerate(self.effects)
            if effect.function is function and effect.arguments[0] is owner
        ]
        for index in reversed(indices[-count:]):
            del self.effects[index]

    def watch_state(self, owner: Path) -> None:
        """Save the state of a native object that C code may change; `log_state_changes` compares the state later."""
        value, state_before = owner.value, state_of(owner.value)
        restore_state = state_restorer(value)
        if restore_state is None:
            return

        def restore() -> None:
            if state_of(value) != state_before:
                restore_state()

        self._watched_states.append((owner, state_before))
        self._undo.append(restore)

    def watched_objects(self) -> list[Any]:
        """Return the native objects from outside whose state C code may have read."""
        return [owner.value for owner, _ in self._watched_states]

    def log_state_changes(self) -> None:
        """Log the changes of the watched native objects, at the end of the run.

        The epilogue replays a change of an open `StringIO` or `BytesIO`: it sets the contents and the position. Any
        other change raises `CannotReplay`.
        """
        for owner, state_before in self._watched_states:
            if state_of(owner.value) == state_before:
                continue
            if isinstance(owner.value, io.StringIO | io.BytesIO) and not owner.value.closed:
                contents = (owner.value.getvalue(), owner.value.tell())
                self.add_epilogue_call(put_buffer_back, (owner.value, *contents))
            else:
                if leads_from_draw(owner):
                    raise CannotReplay(
                        f"the program writes to an array of random numbers ({owner}) through a tensor or a view that "
                        "shares the array's memory, or through a function with `out=`",
                        fix="write to the array before you make a tensor of it, or write to a copy of the array",
                    )
                raise CannotReplay(
                    f"the program writes to {owner}, {object_of_class(type(owner.value))} from outside the "
                    "program; this write cannot be replayed",
                    fix="write to a tensor or a list, return the value, or write outside the compiled program",
                )

    def _table_at_start(self, table: dict[str, Any]) -> Mapping[str, Any]:
        """Return a copy of a dict of attributes from before the first write of an attribute."""
        return self._tables_at_start.setdefault(id(table), dict(table))

    def _copy_original(self, container: object) -> None:
        """Copy a container before its first change, and undo all changes when tracing ends."""
        if id(container) not in self.originals:
            original = self.originals[id(container)] = plain_copy(self.items_at_start(container))
            self._undo.append(functools.partial(restore_items, container, original))

    def add_undo(self, restore: Callable[[], object]) -> None:
        """Call `restore` when tracing ends, before the functions that were added earlier."""
        self._undo.append(restore)

    def undo(self) -> None:
        """Undo all writes, the last write first."""
        while self._undo:
            self._undo.pop()()
