"""Effects, the logged writes of a program to outside objects, and the write that a program is about to make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from thunder_core.frontend.acquire.outside.containers import (
    SET_UPDATES,
    container_base,
    is_known_item,
    size_of_list_or_set,
)
from thunder_core.frontend.acquire.outside.paths import Path

AttributeWrite = Literal["set", "delete"]
EffectKind = Literal[AttributeWrite, "call", "function", "print", "partial"]


@dataclass(frozen=True, eq=False)
class Effect:
    """One write to an outside object, the `owner`.

    `kind` is one of these:

    - `set` or `delete`: the attribute `name` of the owner is set or deleted.
    - `call`: the owner's method `name`, written in C, is called. If the owner's class overrides the method in Python,
      `c_class` is the base class whose C method is called.
    - `function`: `function` is called, with the owner, if any, as its first argument.
    - `print`: `print` is called.
    - `partial`: a write that raised an error, and that may have changed the owner before the error.
    """

    kind: EffectKind
    owner: Path | None
    name: str
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    c_class: type | None = None
    function: Callable[..., Any] | None = None

    def changes_attribute(self, owner: Path, name: str) -> bool:
        """Whether the effect sets or deletes this attribute."""
        return self.kind in ("set", "delete") and (self.owner, self.name) == (owner, name)

    def sets_item(self) -> bool:
        """Whether the effect sets one item of a plain dict, whose key Python's own hash and equality identify."""
        if self.kind != "call" or self.name != "__setitem__" or self.owner is None:
            return False
        return type(self.owner.value) is dict and is_known_item(self.owner.value, self.arguments[0])

    def may_call_python(self) -> bool:
        """Whether the effect may call Python code, such as a key function, or an `__eq__` or `__hash__` of an item.

        Such code may read any attribute and any item.
        """
        if self.kind != "call" or self.owner is None or container_base(self.owner.value) is None:
            return self.kind not in ("set", "delete")
        if self.name in METHODS_WITHOUT_COMPARISONS:
            return False
        is_keyed = self.name in METHODS_OF_KEYS and bool(self.arguments)
        return not (is_keyed and is_known_item(self.owner.value, self.arguments[0]))

    def is_on(self, container: object) -> bool:
        """Whether the effect is a write to this object."""
        return self.owner is not None and self.owner.value is container


# Methods that neither hash nor compare items, and methods that hash and compare only their first argument.
METHODS_WITHOUT_COMPARISONS = frozenset(
    {*("append", "appendleft", "extend", "extendleft", "insert", "clear", "reverse", "rotate", "popleft", "popitem")}
)
METHODS_OF_KEYS = frozenset({"__setitem__", "__delitem__", "pop", "setdefault"})
# Methods that may have changed their owner when they raise.
METHODS_WITH_PARTIAL_WRITES = frozenset({"sort", "extend", "extendleft", "update", "__iadd__", "__ior__", *SET_UPDATES})


@dataclass(frozen=True, eq=False)
class PendingWrite:
    """A logged write that the program is about to make. If the write raises, `EffectLog.retract` removes it.

    `kind` is the kind of the effect, or the method of a write to a variable. `effect` is the logged effect, or None if
    the write only removes an earlier effect. `replaced` is the index and the effect of an earlier write that this write
    replaces. `first_entries` are the entries (see `EffectLog`) that no earlier write has changed.
    """

    owner: Any
    kind: str
    name: str
    effect: Effect | None
    replaced: tuple[int, Effect] | None = None
    first_entries: frozenset[tuple[int, str]] = frozenset()
    size: int | None = None  # the number of items before the write, if the owner is a list or a set

    @property
    def may_be_partial(self) -> bool:
        """Whether the write may have changed its owner before it raised."""
        if self.kind == "function":
            return True
        if self.kind != "call" or self.name not in METHODS_WITH_PARTIAL_WRITES:
            return False
        return self.name == "sort" or self.size is None or size_of_list_or_set(self.owner) != self.size
