"""Writes to weak containers for objects that died before the program ended, and that the containers have dropped."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from thunder_core.foundation.errors import CannotReplay
from thunder_core.frontend.acquire.outside.containers import is_known_by_identity
from thunder_core.frontend.acquire.outside.writes.effect import Effect

# By class of a weak container: the methods of its `data` whose first argument is a weak reference.
METHODS_WITH_REFERENCES: dict[type, frozenset[str]] = {
    weakref.WeakSet: frozenset({"add", "remove", "discard"}),
    weakref.WeakKeyDictionary: frozenset({"__setitem__", "__delitem__", "pop", "setdefault"}),
}
REMOVING_METHODS = frozenset({"__delitem__", "pop"})


def without_dead_references(effects: list[Effect], items_at_start: Callable[[Any], Any]) -> list[Effect]:
    """Return the effects, except effects that add or remove a dead member or key.

    An effect that stores a dead value becomes an effect that removes the entry.

    `items_at_start(container)` returns the items that a container had when the program began. If one of these items has
    died, the dead references of the program cannot be distinguished from older ones. Then no effect on this container
    is left out, and an effect for a dead object raises `CannotReplay`. An effect for a dead object that may have been
    equal to another object raises `CannotReplay`, too, because the effect then changes the entry of the other object.
    """
    return [
        live_effect
        for index, effect in enumerate(effects)
        for live_effect in _live_effects(effect, effects, effects[index + 1 :], items_at_start)
    ]


def _live_effects(
    effect: Effect, effects: list[Effect], later: list[Effect], items_at_start: Callable[[Any], Any]
) -> Iterator[Effect]:
    """Yield an effect, the effect that replaces it, or nothing. `later` are the effects that follow."""
    kind = _weak_container(effect)
    if kind is None or not effect.arguments:
        yield effect
    elif any(map(is_dead, references_in(items_at_start(_data_of_owner(effect))))):
        _require_live_arguments(kind, effect)
        yield effect
    elif effect.name in METHODS_WITH_REFERENCES.get(kind, ()):
        if not is_dead(effect.arguments[0]):
            yield effect
        elif not all(map(is_known_by_identity, _live_keys(_data_of_owner(effect), effects, items_at_start))):
            raise CannotReplay(
                f"the program changes a weak container ({kind.__name__}) for an object that no longer exists when the "
                "program ends, and that may equal another object",
                fix="keep the object alive",
            )
    elif kind is weakref.WeakValueDictionary and is_dead(effect.arguments[-1]) and not _is_removed(effect, later):
        yield replace(effect, name="pop", arguments=(effect.arguments[0], None))
    else:
        yield effect


def _require_live_arguments(kind: type, effect: Effect) -> None:
    """Raise `CannotReplay` if an effect on a weak container has a reference to a dead object."""
    if any(map(is_dead, effect.arguments)):
        failure = CannotReplay(
            f"the program writes to a weak container ({kind.__name__}) for an object that no longer exists when the "
            "program ends",
            fix="keep the object alive",
        )
        # The container's own callback, called while tracing, has noted this object among its pending removals.
        failure.runs_in_eager = False
        raise failure


def _live_keys(data: Any, effects: list[Effect], items_at_start: Callable[[Any], Any]) -> list[Any]:
    """Return the references to living objects that a weak container had at the start, or that effects pass to it."""
    passed = [effect.arguments[0] for effect in effects if effect.is_on(data) and effect.arguments]
    return [key for key in (*items_at_start(data), *passed) if not is_dead(key)]


def _data_of_owner(effect: Effect) -> Any:
    return () if effect.owner is None else effect.owner.value


def _weak_container(effect: Effect) -> type | None:
    """Return the class of the weak container whose `data` an effect changes, or None."""
    owner = effect.owner
    if effect.kind != "call" or owner is None or owner.parent is None or owner.key != "data":
        return None
    container = owner.parent.value
    kinds = (*METHODS_WITH_REFERENCES, weakref.WeakValueDictionary)
    return next((kind for kind in kinds if isinstance(container, kind)), None)


def _is_removed(effect: Effect, later: list[Effect]) -> bool:
    """Whether the program itself removes the entry that an effect sets."""
    removals = (
        removal
        for removal in later
        if removal.is_on(_data_of_owner(effect)) and removal.name in REMOVING_METHODS and removal.arguments
    )
    return any(removal.arguments[0] == effect.arguments[0] for removal in removals)


def references_in(data: Any) -> Iterator[Any]:
    """Yield the weak references in the `data` of a weak container, which is a set or a dict."""
    yield from data
    yield from data.values() if isinstance(data, dict) else ()


def is_dead(value: Any) -> bool:
    """Whether a value is a weak reference to an object that no longer exists."""
    return issubclass(type(value), weakref.ref) and weakref.ref.__call__(value) is None
