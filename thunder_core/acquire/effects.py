"""Writes to outside objects while tracing: done for real, undone at the end, replayed by the epilogue."""

from __future__ import annotations

import collections
import copy
import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_core.acquire.paths import MODULE_TABLES, Path
from thunder_core.errors import CannotReplay
from thunder_core.ir.states import state_of

MISSING = object()

# Methods of builtin containers that change them; all others only read.
IN_PLACE = ("__setitem__", "__delitem__", "__iadd__", "__imul__", "__ior__", "__iand__", "__isub__", "__ixor__")
GROW = ("append", "appendleft", "extend", "extendleft", "insert", "add", "update", "setdefault")
SHRINK = ("pop", "popleft", "popitem", "remove", "discard", "clear")
REARRANGE = ("reverse", "sort", "rotate", "move_to_end")
UPDATES = ("difference_update", "intersection_update", "symmetric_difference_update")
MUTATORS = frozenset((*IN_PLACE, *GROW, *SHRINK, *REARRANGE, *UPDATES))
# Those of them that do the same whatever the container holds; `__setitem__` does so for mappings.
BLIND = frozenset(
    {"append", "appendleft", "extend", "extendleft", "add", "update", "discard", "clear", "__iadd__", "__ior__"}
)
CONTAINERS = (list, dict, set, collections.deque)


@dataclass(frozen=True, eq=False)
class Effect:
    """One write: `kind` is `set`, `delete` (attributes), `call` (a method of a container) or `print`."""

    kind: str
    owner: Path | None
    name: str
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)


def container_base(value: Any) -> Any:
    """Which builtin mutable container a value is, if any."""
    return next((base for base in CONTAINERS if isinstance(value, base)), None)


def mapping_base(container: dict[Any, Any]) -> Any:
    """The class whose methods see a mapping's items as they are stored, whatever its own class overrides."""
    return collections.OrderedDict if isinstance(container, collections.OrderedDict) else dict


def plain_copy(value: Any) -> Any:
    """A container's items in a builtin container of the same kind, past all that its own class overrides."""
    if isinstance(value, dict):
        base = mapping_base(value)
        return base(base.items(value))
    base = container_base(value)
    return base(base.__iter__(value))


def put_back(value: Any, original: Any) -> None:
    """Give a container the items that its plain copy has."""
    base = type(original)
    base.clear(value)
    if base in (list, collections.deque):
        base.extend(value, original)
    elif base is set:
        set.update(value, original)
    else:
        for key, item in original.items():
            base.__setitem__(value, key, item)


def is_known_key(key: Any) -> bool:
    """Whether a key is equal to others by its value alone, so that no code of the user's decides."""
    return type(key) in (str, int, bytes, bool, float)


def index_of(container: Any, key: Any) -> Any:
    """The key of an item; an index is counted from the beginning."""
    counted = isinstance(container, list | tuple) and type(key) is int and -len(container) <= key < 0
    return key + len(container) if counted else key


def has_own(owner: Any, name: str) -> bool:
    """Whether an object itself has an attribute, in whichever table it lives."""
    if isinstance(owner, torch.nn.Module):
        return any(name in table for table in (owner.__dict__, *(owner.__dict__[one] for one in MODULE_TABLES)))
    if isinstance(getattr(owner, "__dict__", None), dict):
        return name in owner.__dict__ or isinstance(getattr(type(owner), name, None), types.MemberDescriptorType)
    return True


def attribute_snapshot(owner: Any, name: str) -> Callable[[], None]:
    """A function that puts one attribute back as it is now, in whichever table it lives."""
    if isinstance(owner, torch.nn.Module):
        tables = [owner.__dict__, *(owner.__dict__[table] for table in MODULE_TABLES)]
    elif isinstance(getattr(owner, "__dict__", None), dict):
        tables = [owner.__dict__]
    else:
        return _slot_snapshot(owner, name)
    return entry_snapshot(tables, name)


def entry_snapshot(tables: list[dict[str, Any]], name: str) -> Callable[[], None]:
    """A function that puts one name back as it is now in each of the tables."""
    before = [(table, table.get(name, MISSING)) for table in tables]

    def restore() -> None:
        for table, old in before:
            if old is MISSING:
                table.pop(name, None)
            else:
                table[name] = old

    return restore


def _slot_snapshot(owner: Any, name: str) -> Callable[[], None]:
    try:
        old = getattr(owner, name, MISSING)
    except ValueError:  # an empty cell
        old = MISSING

    def restore() -> None:
        if old is not MISSING:
            setattr(owner, name, old)
        elif not isinstance(owner, types.CellType) or owner != types.CellType():
            delattr(owner, name)

    return restore


class EffectLog:
    """The writes of one acquisition, in order, and how to undo them."""

    def __init__(self) -> None:
        self.effects: list[Effect] = []
        self.touched: set[tuple[int, str]] = set()
        self._made: set[tuple[int, str]] = set()  # attributes that were not there when the program began
        self._undo: list[Callable[[], object]] = []
        self.originals: dict[int, Any] = {}
        self._states: list[tuple[Path, Any]] = []
        self.stored: dict[int, set[Any] | None] = {}  # of those the keys whose items were set; None if more was done

    def attribute(self, kind: str, owner: Path, name: str, *value: Any) -> None:
        """An attribute of an outside object is about to be set or deleted."""
        key = (id(owner.value), name)
        if key not in self.touched and not has_own(owner.value, name):
            self._made.add(key)
        self._undo.append(attribute_snapshot(owner.value, name))
        self.touched.add(key)
        start = 1 + max((place for place, one in enumerate(self.effects) if one.kind == "print"), default=-1)
        later = [e for e in self.effects[start:] if e.kind == "call" or (e.owner, e.name) != (owner, name)]
        self.effects[start:] = later  # what is printed may show what was written before
        if kind != "delete" or key not in self._made:
            self.effects.append(Effect(kind, owner, name, value))

    def call(self, owner: Path, name: str, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """A method that changes an outside container is about to be called."""
        if id(owner.value) not in self.originals:
            original = self.originals[id(owner.value)] = plain_copy(owner.value)
            self._undo.append(functools.partial(put_back, owner.value, original))
        self.effects.append(Effect("call", owner, name, arguments, dict(keywords)))
        self._note_stored(owner.value, name, arguments)

    def _note_stored(self, container: Any, name: str, arguments: tuple[Any, ...]) -> None:
        """Note which item is the program's own now."""
        keys = self.stored.setdefault(id(container), set())
        known = name == "__setitem__" and type(container) in (dict, list) and is_known_key(arguments[0])
        if keys is None or not known:
            self.stored[id(container)] = None
        else:
            keys.add(index_of(container, arguments[0]))

    def variable(self, namespace: Path, method: str, name: str, *value: Any) -> None:
        """A global variable is about to be set or deleted: of a module's namespace only that name is put back."""
        self._undo.append(entry_snapshot([namespace.value], name))
        self.touched.add((id(namespace.value), name))
        self.effects.append(Effect("call", namespace, method, (name, *value)))

    def printed(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        """The program printed something."""
        self.effects.append(Effect("print", None, "print", arguments, dict(keywords)))

    def set_process(self, restore: Callable[[], object]) -> None:
        """A setting of the process is about to be changed; `restore` puts it back."""
        self._undo.append(restore)

    def keep_state(self, owner: Path) -> None:
        """An object of C may be changed by what is called next; that cannot be replayed, but it is undone."""
        value, before = owner.value, state_of(owner.value)
        if not hasattr(value, "__setitem__"):
            return
        kept = value.tobytes() if isinstance(value, memoryview) else copy.copy(value)

        def restore() -> None:
            if state_of(value) != before:
                value[() if hasattr(value, "flags") else slice(None)] = kept

        self._states.append((owner, before))
        self._undo.append(restore)

    def require_kept(self) -> None:
        """Raise `CannotReplay` where an outside object of C was changed."""
        for owner, before in self._states:
            if state_of(owner.value) != before:
                raise CannotReplay(
                    f"the program writes to {owner}, which comes from outside: to a {type(owner.value).__name__} that "
                    "cannot be replayed",
                    fix="write to a tensor or a list, return what was computed, or do it outside of what is compiled",
                )

    def undo(self) -> None:
        """Put everything back, the last write first."""
        while self._undo:
            self._undo.pop()()
