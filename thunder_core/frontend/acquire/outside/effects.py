"""Writes to outside objects while tracing: done for real, undone at the end, replayed by the epilogue."""

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
    MISSING,
    attribute_snapshot,
    entry_snapshot,
    has_own,
    tables_of,
)
from thunder_core.frontend.interpreter.lookup import mro_of
from thunder_core.tracing.library.states import kept_state, put_buffer_back, state_of


@dataclass(frozen=True, eq=False)
class Effect:
    """One write: `kind` is `set`, `delete` (attributes), `call` (a method), `function` or `print`.

    It was made by C code; where the owner's class overrides that in Python, by the method of the class `level`.
    """

    kind: str
    owner: Path | None
    name: str
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    level: type | None = None
    function: Callable[..., Any] | None = None

    def is_of(self, owner: Path, name: str) -> bool:
        """Whether it sets or deletes this attribute."""
        return self.kind in ("set", "delete") and (self.owner, self.name) == (owner, name)

    def sets_item(self) -> bool:
        """Whether it sets one item of a plain dict, whose key tells which."""
        if self.kind != "call" or self.name != "__setitem__" or self.owner is None:
            return False
        return type(self.owner.value) is dict and is_known_item(self.owner.value, self.arguments[0])

    def is_on(self, container: Any) -> bool:
        """Whether it is a write to this object."""
        return self.owner is not None and self.owner.value is container


# Methods and functions that may have written a part of what they write where they raise.
PARTIAL = frozenset({"sort", "extend", "extendleft", "update", "__iadd__", "__ior__", *UPDATES})


@dataclass(frozen=True, eq=False)
class Announced:
    """A write that is about to be made: its effect, if it has one, and what is to be put back where it raises.

    `replaced` is the effect whose place it takes, and where that stood; `touched` are the attributes that it is the
    first to write.
    """

    owner: Any
    kind: str
    name: str
    effect: Effect | None
    replaced: tuple[int, Effect] | None = None
    touched: frozenset[tuple[int, str]] = frozenset()
    size: int | None = None  # how many items a list or set had

    @property
    def may_be_partial(self) -> bool:
        """Whether a part of the write may have been made where it has raised."""
        if self.kind == "function":
            return True
        if self.kind != "call" or self.name not in PARTIAL:
            return False
        return self.name == "sort" or self.size is None or length_of(self.owner) != self.size


class EffectLog:
    """The writes of one acquisition, in order, and how to undo them.

    `originals` are plain copies of the containers that were changed, and of the tables that attributes were written to.
    """

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.originals: dict[int, Any] = {}
        self._tables: dict[int, dict[str, Any]] = {}
        self._touched: set[tuple[int, str]] = set()
        self._made: set[tuple[int, str]] = set()  # attributes that were not there when the program began
        self._undo: list[Callable[[], object]] = []
        self._states: list[tuple[Path, Any]] = []
        self.announced: Announced | None = None
        self.stored: dict[int, set[Any] | None] = {}  # of those the keys whose items were set; None if more was done

    # ---- what was written -----------------------------------------------------------------------------------

    def held(self, container: Any) -> Any:
        """A container with the items that it had when the program began."""
        return self.originals.get(id(container), self._tables.get(id(container), container))

    def has_written(self, owner: Any, name: str) -> bool:
        """Whether the program has written an attribute of an object, or that of a class which the object shows."""
        if not self._undo:
            return False
        tables = tables_of(owner)
        if any((id(table), name) in self._touched or self._differs(table, name) for table in tables):
            return True
        if (id(owner), name) in self._touched:
            return True
        classes = mro_of(owner if isinstance(owner, type) else type(owner))
        hidden = any(name in table for table in tables)
        return not hidden and any((id(base), name) in self._touched for base in classes)

    def has_written_any(self, owner: Any) -> bool:
        """Whether the program has written any attribute of an object that has no tables of attributes, as a class."""
        return any(number == id(owner) for number, _ in self._touched)

    def has_stored(self, table: Any, name: Any) -> bool:
        """Whether the program has written the entry of that name in a table of attributes."""
        return type(name) is str and (id(table), name) in self._touched

    def _differs(self, table: dict[str, Any], name: str) -> bool:
        """Whether an entry of a table of attributes is another one since a method of the table was called."""
        original = self.originals.get(id(table))
        return original is not None and original.get(name, MISSING) is not table.get(name, MISSING)

    # ---- writes ---------------------------------------------------------------------------------------------

    def attribute(self, kind: str, owner: Path, name: str, *value: Any, level: type | None = None) -> None:
        """An attribute of an outside object is about to be set or deleted."""
        places = [(place, name) for place in places_of(owner.value)]
        if not self._touched.intersection(places) and not has_own(owner.value, name):
            self._made.update(places)
        self._undo.append(attribute_snapshot(owner.value, name, self._order))
        touched = frozenset(places) - self._touched
        self._touched |= touched
        hidden = self._unseen(owner, name)
        dropped = hidden.pop() if hidden and hidden[-1].kind == "set" else None
        replaced = None
        if dropped is not None:
            replaced = (self.effects.index(dropped), dropped)
            self.effects.remove(dropped)
        is_back = (
            dropped is not None
            and self._made.issuperset(places)
            and not any(effect.is_of(owner, name) for effect in self.effects)
        )
        effect = Effect(kind, owner, name, value, level=level) if kind == "set" or not (hidden or is_back) else None
        self._announce(owner.value, kind, name, effect, replaced, touched)

    def _announce(
        self,
        owner: Any,
        kind: str,
        name: str,
        effect: Effect | None,
        replaced: tuple[int, Effect] | None = None,
        touched: frozenset[tuple[int, str]] = frozenset(),
    ) -> None:
        """Log the effect of a write that is about to be made."""
        self.effects += [effect] if effect is not None else []
        self.announced = Announced(owner, kind, name, effect, replaced, touched, length_of(owner))

    def retract(self, announced: Announced) -> None:
        """A write that was announced has raised: it is no effect."""
        self.announced = None
        if announced.effect is not None:
            place = self.effects.index(announced.effect)
            partial = [replace(announced.effect, kind="partial")] if announced.may_be_partial else []
            self.effects[place : place + 1] = partial
        if announced.replaced is not None:
            self.effects.insert(*announced.replaced)
        self._touched -= announced.touched

    def _unseen(self, owner: Path, name: str) -> list[Effect]:
        """The writes of an attribute behind the last effect that may have shown it, the latest last."""
        tables = tables_of(owner.value)
        effects: list[Effect] = []
        for effect in reversed(self.effects):
            if effect.is_of(owner, name):
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
        """A method that changes an outside container is about to be called."""
        self._keep(owner.value)
        arguments = kept_arguments(name, arguments)
        effect = Effect("call", owner, name, arguments, dict(keywords), level)
        replaced = self._overwritten(effect)
        if replaced is not None:
            self.effects.remove(replaced[1])
        is_back = replaced is not None and self._puts_back(effect)
        self._announce(owner.value, "call", name, None if is_back else effect, replaced)
        self._note_stored(owner.value, name, arguments)

    def _overwritten(self, write: Effect) -> tuple[int, Effect] | None:
        """The last write of the same item of a dict, with its place, where nothing may have shown what it wrote."""
        if write.owner is None or not write.sets_item() or write.arguments[0] not in self._original(write):
            return None
        for place in reversed(range(len(self.effects))):
            effect = self.effects[place]
            if effect.owner is None or any(table is write.owner.value for table in tables_of(effect.owner.value)):
                return None
            if effect.owner.value is write.owner.value:
                if not effect.sets_item():
                    return None
                if effect.arguments[0] == write.arguments[0]:
                    return place, effect
        return None

    def _puts_back(self, write: Effect) -> bool:
        """Whether a write gives an item of a dict the value that it had at first, and no other write is of it."""
        if self._original(write)[write.arguments[0]] is not write.arguments[1]:
            return False
        container = write.owner.value if write.owner is not None else None
        others = (effect for effect in self.effects if effect.is_on(container))
        return all(effect.sets_item() and effect.arguments[0] != write.arguments[0] for effect in others)

    def _original(self, write: Effect) -> Any:
        return self.originals[id(write.owner.value)] if write.owner is not None else {}

    def _note_stored(self, container: Any, name: str, arguments: tuple[Any, ...]) -> None:
        """Note which item is the program's own now."""
        keys = self.stored.setdefault(id(container), set())
        known = name == "__setitem__" and type(container) in (dict, list) and is_known_item(container, arguments[0])
        if keys is None or not known:
            self.stored[id(container)] = None
        else:
            keys.add(index_of(container, arguments[0]))

    def function(
        self, function: Callable[..., Any], owner: Path, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> None:
        """A C function that changes an outside container is about to be called, with this after the container."""
        self._keep(owner.value)
        self.stored[id(owner.value)] = None
        effect = Effect("function", owner, function.__name__, arguments, dict(keywords), function=function)
        self._announce(owner.value, "function", function.__name__, effect)

    def variable(self, namespace: Path, method: str, name: str, *value: Any) -> None:
        """A variable of a namespace is about to be set or deleted: only that name is put back."""
        self._undo.append(entry_snapshot(namespace.value, name, self._order(namespace.value)))
        touched = frozenset({(id(namespace.value), name)}) - self._touched
        self._touched |= touched
        effect = Effect("call", namespace, method, (name, *value))
        self._announce(namespace.value, method, name, effect, None, touched)

    def printed(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """The program printed something."""
        self.effects.append(Effect("print", None, "print", arguments, dict(keywords)))

    def written(self, stream: Path, method: str, texts: tuple[str, ...]) -> None:
        """The program wrote to a stream of the process."""
        self.effects.append(Effect("call", stream, method, texts))

    def calls(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """The epilogue is to call a function of ours at this point."""
        self.effects.append(Effect("function", None, function.__name__, arguments, function=function))

    def withdraw(self, function: Callable[..., Any], owner: Any, count: int) -> None:
        """The program has taken back the last calls of a function of ours with this first argument, of this number."""
        places = [
            place
            for place, effect in enumerate(self.effects)
            if effect.function is function and effect.arguments[0] is owner
        ]
        for place in reversed(places[-count:]):
            del self.effects[place]

    def set_process(self, restore: Callable[[], object]) -> None:
        """A setting of the process is about to be changed; `restore` puts it back."""
        self._undo.append(restore)

    def keep_state(self, owner: Path) -> None:
        """An object of C may be changed by what is called next; that cannot be replayed, but it is undone."""
        value, before = owner.value, state_of(owner.value)
        put_back = kept_state(value)
        if put_back is None:
            return

        def restore() -> None:
            if state_of(value) != before:
                put_back()

        self._states.append((owner, before))
        self._undo.append(restore)

    def require_kept(self) -> None:
        """Raise `CannotReplay` where an outside object of C was changed."""
        for owner, before in self._states:
            if state_of(owner.value) == before:
                continue
            if isinstance(owner.value, io.StringIO | io.BytesIO) and not owner.value.closed:
                contents = (owner.value.getvalue(), owner.value.tell())
                self.calls(put_buffer_back, (owner.value, *contents))
            else:
                if leads_from_draw(owner):
                    raise CannotReplay(
                        f"the program writes to an array of random numbers ({owner}) behind a tensor or a view that "
                        "shares the memory of the array, or by a function with `out=`",
                        fix="write to the array before a tensor is made of it, or write to a copy of the array",
                    )
                raise CannotReplay(
                    f"the program writes to {owner}, a {type(owner.value).__name__} from outside the program; this "
                    "write cannot be replayed",
                    fix="write to a tensor or a list, return the value, or write outside the compiled program",
                )

    def _order(self, table: dict[str, Any]) -> Mapping[str, Any]:
        """A table of attributes as it was before the first of them was written."""
        return self._tables.setdefault(id(table), dict(table))

    def _keep(self, container: Any) -> None:
        if id(container) not in self.originals:
            original = self.originals[id(container)] = plain_copy(self.held(container))
            self._undo.append(functools.partial(put_back, container, original))

    def undo_by(self, restore: Callable[[], None]) -> None:
        """Call this when tracing ends, before what was noted earlier."""
        self._undo.append(restore)

    def undo(self) -> None:
        """Put everything back, the last write first."""
        while self._undo:
            self._undo.pop()()


def length_of(owner: Any) -> int | None:
    """The number of items of a list or set, past a `__len__` of its class; None for all else."""
    base = container_base(owner)
    return base.__len__(owner) if base in (list, set) else None


def places_of(owner: Any) -> list[int]:
    """The identities of the tables that an object's attributes live in; the object's own where it has none."""
    return [id(table) for table in tables_of(owner)] or [id(owner)]
