"""Writes to outside objects while tracing: they are done, undone at the end, and replayed by the epilogue."""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from thunder_core.foundation.errors import CannotReplay
from thunder_core.frontend.acquire.outside.containers import (
    UPDATES,
    container_base,
    index_of,
    is_known_item,
    kept_arguments,
    plain_copy,
    put_back,
)
from thunder_core.frontend.acquire.outside.paths import Path, leads_from_draw
from thunder_core.frontend.acquire.outside.snapshots import (
    attribute_snapshot,
    entry_snapshot,
    has_own,
    tables_of,
)
from thunder_core.tracing.ir.stored_attributes import MISSING
from thunder_core.tracing.library.changes.class_entries import mro_of
from thunder_core.tracing.library.states import kept_state, put_buffer_back, state_of


@dataclass(frozen=True, eq=False)
class Effect:
    """One write to an outside object.

    `kind` is `set` or `delete` (an attribute), `call` (a method), `function`, `print`, or `partial` (a write that
    raised midway). C code makes the write. If the owner's class overrides the method in Python, `level` is the class
    whose method is called.
    """

    kind: str
    owner: Path | None
    name: str
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    level: type | None = None
    function: Callable[..., Any] | None = None

    def changes_attribute(self, owner: Path, name: str) -> bool:
        """Whether the effect sets or deletes this attribute."""
        return self.kind in ("set", "delete") and (self.owner, self.name) == (owner, name)

    def sets_item(self) -> bool:
        """Whether the effect sets one item of a plain dict, identified by its key."""
        if self.kind != "call" or self.name != "__setitem__" or self.owner is None:
            return False
        return type(self.owner.value) is dict and is_known_item(self.owner.value, self.arguments[0])

    def is_on(self, container: object) -> bool:
        """Whether the effect is a write to this object."""
        return self.owner is not None and self.owner.value is container


# Methods and functions that may have made a part of their writes when they raise.
PARTIAL = frozenset({"sort", "extend", "extendleft", "update", "__iadd__", "__ior__", *UPDATES})


@dataclass(frozen=True, eq=False)
class Announced:
    """A write that is about to be made, and the information to undo its log entry if it raises.

    `effect` is the logged effect or None. `replaced` is the earlier effect that the write replaces, with its index.
    `touched` are the attributes that no earlier write has changed.
    """

    owner: Any
    kind: str
    name: str
    effect: Effect | None
    replaced: tuple[int, Effect] | None = None
    touched: frozenset[tuple[int, str]] = frozenset()
    size: int | None = None  # the number of items that a list or set had

    @property
    def may_be_partial(self) -> bool:
        """Whether a write that raised may have been made in part."""
        if self.kind == "function":
            return True
        if self.kind != "call" or self.name not in PARTIAL:
            return False
        return self.name == "sort" or self.size is None or length_of(self.owner) != self.size


class EffectLog:
    """The writes of one run, in order, and how to undo them.

    `originals` are plain copies of changed containers, and of the tables of attributes that were written to.
    """

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.originals: dict[int, Any] = {}
        self._tables: dict[int, dict[str, Any]] = {}
        self._touched: set[tuple[int, str]] = set()
        self._made: set[tuple[int, str]] = set()  # attributes that did not exist when the program began
        self._undo: list[Callable[[], object]] = []
        self._states: list[tuple[Path, Any]] = []
        self.announced: Announced | None = None
        self.announcements = 0  # the number of writes, whether or not they replaced an earlier effect
        # by container: the keys of its items that were set, or None after other changes
        self.stored: dict[int, set[Any] | None] = {}

    # ---- the program's writes -------------------------------------------------------------------------------

    def items_at_start(self, container: object) -> Any:
        """Return a container with the items that it had when the program began."""
        return self.originals.get(id(container), self._tables.get(id(container), container))

    def has_written(self, owner: object, name: str) -> bool:
        """Whether the program has written an attribute of an object, or a class attribute that the object shows."""
        if not self._undo:
            return False
        tables = tables_of(owner)
        if not self._touched.isdisjoint([(id(holder), name) for holder in (owner, *tables)]):
            return True
        if self.originals and any(self._differs(table, name) for table in tables):
            return True
        classes = mro_of(owner if isinstance(owner, type) else type(owner))
        hidden = any(name in table for table in tables)
        return not hidden and not self._touched.isdisjoint([(id(base), name) for base in classes])

    def attribute_existed(self, owner: object, name: str) -> bool | None:
        """Whether an attribute existed when the program began; None if the program has not written it yet."""
        entries = {(table, name) for table in table_identities(owner)}
        return None if self._touched.isdisjoint(entries) else self._made.isdisjoint(entries)

    def has_written_any(self, owner: object) -> bool:
        """Whether the program has written any attribute of an object without a table of attributes, such as a class."""
        return any(number == id(owner) for number, _ in self._touched)

    def written_values(self) -> list[Any]:
        """Return the arguments of all effects."""
        return [(effect.arguments, dict(effect.keywords)) for effect in self.effects]

    def has_stored(self, table: object, name: object) -> bool:
        """Whether the program has written the entry with this name in a table of attributes."""
        return type(name) is str and (id(table), name) in self._touched

    def _differs(self, table: dict[str, Any], name: str) -> bool:
        """Whether an entry of a table of attributes has changed since a method of the table was called."""
        original = self.originals.get(id(table))
        return original is not None and original.get(name, MISSING) is not table.get(name, MISSING)

    # ---- writes ---------------------------------------------------------------------------------------------

    def attribute(self, kind: str, owner: Path, name: str, *value: Any, level: type | None = None) -> None:
        """Note that an attribute of an outside object is about to be set or deleted."""
        entries = [(table, name) for table in table_identities(owner.value)]
        if not self._touched.intersection(entries) and not has_own(owner.value, name):
            self._made.update(entries)
        self._undo.append(attribute_snapshot(owner.value, name, self._order))
        touched = frozenset(entries) - self._touched
        self._touched |= touched
        hidden = self._unseen(owner, name)
        dropped = hidden.pop() if hidden and hidden[-1].kind == "set" else None
        replaced = None
        if dropped is not None:
            replaced = (self.effects.index(dropped), dropped)
            self.effects.remove(dropped)
        is_back = (
            dropped is not None
            and self._made.issuperset(entries)
            and not any(effect.changes_attribute(owner, name) for effect in self.effects)
        )
        effect = Effect(kind, owner, name, value, level=level) if kind == "set" or not (hidden or is_back) else None
        self._announce(owner.value, kind, name, effect, replaced, touched)

    def _announce(
        self,
        owner: object,
        kind: str,
        name: str,
        effect: Effect | None,
        replaced: tuple[int, Effect] | None = None,
        touched: frozenset[tuple[int, str]] = frozenset(),
    ) -> None:
        """Log the effect of a write that is about to be made."""
        self.effects += [effect] if effect is not None else []
        self.announcements += 1
        self.announced = Announced(owner, kind, name, effect, replaced, touched, length_of(owner))

    def retract(self, announced: Announced) -> None:
        """Remove the effect of an announced write that has raised."""
        self.announced = None
        if announced.effect is not None:
            index = self.effects.index(announced.effect)
            partial = [replace(announced.effect, kind="partial")] if announced.may_be_partial else []
            self.effects[index : index + 1] = partial
        if announced.replaced is not None:
            self.effects.insert(*announced.replaced)
        self._touched -= announced.touched

    def _unseen(self, owner: Path, name: str) -> list[Effect]:
        """Return the writes of an attribute after the last effect that may have used it, the latest last."""
        tables = tables_of(owner.value)
        effects: list[Effect] = []
        for effect in reversed(self.effects):
            if effect.changes_attribute(owner, name):
                effects.append(effect)
            elif effect.owner is None or any(effect.owner.value is table for table in tables):
                break
        return effects[::-1]

    def call(
        self,
        owner: Path,
        name: str,
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        level: type | None = None,
    ) -> None:
        """Note that a method that changes an outside container is about to be called."""
        self._keep(owner.value)
        arguments = kept_arguments(name, arguments)
        effect = Effect("call", owner, name, arguments, dict(keywords), level)
        replaced = self._overwritten_write(effect)
        if replaced is not None:
            self.effects.remove(replaced[1])
        is_back = replaced is not None and self._puts_back(effect)
        self._announce(owner.value, "call", name, None if is_back else effect, replaced)
        self._note_stored(owner.value, name, arguments)

    def _overwritten_write(self, write: Effect) -> tuple[int, Effect] | None:
        """Return the last write of the same dict item, with its index, if no later effect may have used the value."""
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
        return None

    def _puts_back(self, write: Effect) -> bool:
        """Whether a write restores the original value of a dict item that no other effect writes."""
        if self._original(write)[write.arguments[0]] is not write.arguments[1]:
            return False
        container = write.owner.value if write.owner is not None else None
        effects_on_container = (effect for effect in self.effects if effect.is_on(container))
        return all(effect.sets_item() and effect.arguments[0] != write.arguments[0] for effect in effects_on_container)

    def _original(self, write: Effect) -> Any:
        return self.originals[id(write.owner.value)] if write.owner is not None else {}

    def _note_stored(self, container: object, name: str, arguments: tuple[Any, ...]) -> None:
        """Note which item the program has set."""
        keys = self.stored.setdefault(id(container), set())
        is_single_item = (
            name == "__setitem__" and type(container) in (dict, list) and is_known_item(container, arguments[0])
        )
        if keys is None or not is_single_item:
            self.stored[id(container)] = None
        else:
            keys.add(index_of(container, arguments[0]))

    def function(
        self, function: Callable[..., Any], owner: Path, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> None:
        """Note that a C function is about to change an outside container; `arguments` follow the container."""
        self._keep(owner.value)
        self.stored[id(owner.value)] = None
        effect = Effect("function", owner, function.__name__, arguments, dict(keywords), function=function)
        self._announce(owner.value, "function", function.__name__, effect)

    def variable(self, namespace: Path, method: str, name: str, *value: Any) -> None:
        """Note that a variable of a namespace is about to be set or deleted. Undoing restores only this name."""
        self._undo.append(entry_snapshot(namespace.value, name, self._order(namespace.value)))
        touched = frozenset({(id(namespace.value), name)}) - self._touched
        if touched and name not in namespace.value:
            self._made |= touched
        self._touched |= touched
        effect = Effect("call", namespace, method, (name, *value))
        self._announce(namespace.value, method, name, effect, None, touched)

    def note_print(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """Note that the program has printed."""
        self.effects.append(Effect("print", None, "print", arguments, dict(keywords)))

    def note_stream_write(self, stream: Path, method: str, texts: tuple[str, ...]) -> None:
        """Note that the program has written to a stream of the process."""
        self.effects.append(Effect("call", stream, method, texts))

    def calls(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Make the epilogue call a function of Thunder at this point."""
        self.effects.append(Effect("function", None, function.__name__, arguments, function=function))

    def withdraw(self, function: Callable[..., Any], owner: object, count: int) -> None:
        """Remove the last `count` calls of a function with this first argument, which the program has undone."""
        indices = [
            index
            for index, effect in enumerate(self.effects)
            if effect.function is function and effect.arguments[0] is owner
        ]
        for index in reversed(indices[-count:]):
            del self.effects[index]

    def set_process(self, restore: Callable[[], object]) -> None:
        """Note that a setting of the process is about to change; `restore` restores the setting."""
        self._undo.append(restore)

    def keep_state(self, owner: Path) -> None:
        """Note that the next call may change an object of C. Such a change is undone, but cannot be replayed."""
        value, state_before = owner.value, state_of(owner.value)
        put_back = kept_state(value)
        if put_back is None:
            return

        def restore() -> None:
            if state_of(value) != state_before:
                put_back()

        self._states.append((owner, state_before))
        self._undo.append(restore)

    def require_kept(self) -> None:
        """Raise `CannotReplay` if an outside object of C was changed."""
        for owner, state_before in self._states:
            if state_of(owner.value) == state_before:
                continue
            if isinstance(owner.value, io.StringIO | io.BytesIO) and not owner.value.closed:
                contents = (owner.value.getvalue(), owner.value.tell())
                self.calls(put_buffer_back, (owner.value, *contents))
            else:
                if leads_from_draw(owner):
                    raise CannotReplay(
                        f"the program writes to an array of random numbers ({owner}) through a tensor or a view that "
                        "shares the array's memory, or through a function with `out=`",
                        fix="write to the array before a tensor is made of it, or write to a copy of the array",
                    )
                raise CannotReplay(
                    f"the program writes to {owner}, a {type(owner.value).__name__} from outside the program; this "
                    "write cannot be replayed",
                    fix="write to a tensor or a list, return the value, or write outside the compiled program",
                )

    def _order(self, table: dict[str, Any]) -> Mapping[str, Any]:
        """Return a table of attributes as it was before the first write to it."""
        return self._tables.setdefault(id(table), dict(table))

    def _keep(self, container: object) -> None:
        if id(container) not in self.originals:
            original = self.originals[id(container)] = plain_copy(self.items_at_start(container))
            self._undo.append(functools.partial(put_back, container, original))

    def undo_by(self, restore: Callable[[], None]) -> None:
        """Call `restore` when tracing ends, before the restorations that were noted earlier."""
        self._undo.append(restore)

    def undo(self) -> None:
        """Undo all writes, the last write first."""
        while self._undo:
            self._undo.pop()()


def length_of(owner: object) -> int | None:
    """Return the number of items of a list or set, bypassing `__len__` of its class; None for other objects."""
    base = container_base(owner)
    return base.__len__(owner) if base in (list, set) else None


def table_identities(owner: object) -> list[int]:
    """Return the identities of the tables with an object's attributes, or of the object itself if it has no table."""
    return [id(table) for table in tables_of(owner)] or [id(owner)]
