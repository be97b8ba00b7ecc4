"""Writes to weak containers for objects that died before the program ended: the container has dropped them, too."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from thunder_core.foundation.errors import CannotReplay
from thunder_core.frontend.acquire.outside.effects import Effect

# By class of a weak container: the methods of its `data` that get the reference first.
OF_REFERENCES: dict[type, frozenset[str]] = {
    weakref.WeakSet: frozenset({"add", "remove", "discard"}),
    weakref.WeakKeyDictionary: frozenset({"__setitem__", "__delitem__", "pop", "setdefault"}),
}
REMOVING = frozenset({"__delitem__", "pop"})


def without_dead_references(effects: list[Effect], items_at_start: Callable[[Any], Any]) -> list[Effect]:
    """Return the effects without effects for dead members and keys; entries that a dead value replaced are removed.

    `items_at_start(container)` returns the items that a container had when the program began. If one of these items has
    died, it is not known which references belong to the program's own objects: no effect is left out, and an effect for
    a dead object raises `CannotReplay`.
    """
    return [
        live_effect
        for index, effect in enumerate(effects)
        for live_effect in _kept_effects(effect, effects[index + 1 :], items_at_start)
    ]


def _kept_effects(effect: Effect, later: list[Effect], items_at_start: Callable[[Any], Any]) -> Iterator[Effect]:
    kind = _weak_container(effect)
    if kind is None or not effect.arguments:
        yield effect
    elif any(map(is_dead, references_in(items_at_start(_data(effect))))):
        _require_living(kind, effect)
        yield effect
    elif effect.name in OF_REFERENCES.get(kind, ()):
        if not is_dead(effect.arguments[0]):
            yield effect
    elif kind is weakref.WeakValueDictionary and is_dead(effect.arguments[-1]) and not _is_removed(effect, later):
        yield replace(effect, name="pop", arguments=(effect.arguments[0], None))
    else:
        yield effect


def _require_living(kind: type, effect: Effect) -> None:
    """Raise `CannotReplay` if an effect on a weak container has a reference to a dead object."""
    if any(map(is_dead, effect.arguments)):
        raise CannotReplay(
            f"the program writes to a {kind.__name__} for an object that no longer exists when the program ends",
            fix="keep the object alive",
        )


def _data(effect: Effect) -> Any:
    return () if effect.owner is None else effect.owner.value


def _weak_container(effect: Effect) -> type | None:
    """Return the class of the weak container whose `data` an effect changes, or None."""
    owner = effect.owner
    if effect.kind != "call" or owner is None or owner.parent is None or owner.key != "data":
        return None
    container = owner.parent.value
    kinds = (*OF_REFERENCES, weakref.WeakValueDictionary)
    return next((kind for kind in kinds if isinstance(container, kind)), None)


def _is_removed(effect: Effect, later: list[Effect]) -> bool:
    """Whether the program itself removes the entry that an effect sets."""
    removals = (
        removal for removal in later if removal.is_on(_data(effect)) and removal.name in REMOVING and removal.arguments
    )
    return any(removal.arguments[0] == effect.arguments[0] for removal in removals)


def references_in(data: Any) -> Iterator[Any]:
    """Yield the weak references in the `data` of a weak container, which is a set or a dict."""
    yield from data
    yield from data.values() if isinstance(data, dict) else ()


def is_dead(value: Any) -> bool:
    """Whether a value is a weak reference to an object that no longer exists."""
    return issubclass(type(value), weakref.ref) and weakref.ref.__call__(value) is None
