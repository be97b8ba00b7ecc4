"""Guards on the items of a container of constants, merged into one guard."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeGuard

from thunder_core.frontend.acquire.outside.guards.containers import ConstantItems, Keys, Length
from thunder_core.frontend.acquire.outside.guards.guard import Guard
from thunder_core.frontend.acquire.outside.guards.values import OfConstant, OfType, Values
from thunder_core.frontend.acquire.outside.paths import Path, leads_from_draw
from thunder_core.tracing.ir.constants import LITERALS

Guards = Mapping[tuple[Any, ...], Guard]
MIN_ITEMS = 32  # of a list or a dict whose guards are merged


def with_merged_items(guards: Iterable[Guard]) -> list[Guard]:
    """Replace the guards on the class, the length and each item of a tuple of literals by one guard, and the guards on
    each item of a long list or dict of literals by one guard.

    A container keeps its guards if its length or one of its items is not guarded as a constant: then the program is
    also valid for other containers.
    """
    by_key = {guard.key: guard for guard in guards}
    merged: dict[tuple[Any, ...], Guard | None] = {}
    for guard in by_key.values():
        if isinstance(guard, Length | Keys) and (paths := constant_items(guard, by_key)):
            keys = [(OfConstant, path) for path in paths]
            merged |= dict.fromkeys(keys)
            merged[keys[0]] = ConstantItems(guard.path, paths)
    for key, guard in by_key.items():
        if isinstance(guard, OfType) and key not in merged and (keys := keys_fixing(guard.path, by_key)):
            merged |= dict.fromkeys(keys)
            merged[key] = Values(guard.path, guard.path.value)
    return [guard_or_none for key, guard in by_key.items() if (guard_or_none := merged.get(key, guard)) is not None]


def constant_items(guard: Length | Keys, guards: Guards) -> tuple[Path, ...]:
    """Return the paths of the items of a long list or dict if guards require literals at all of them; otherwise none.

    `guard` is the guard on the length of the list, or on the keys of the dict.
    """
    container = guard.path
    kind, labels = (list, range(guard.length)) if isinstance(guard, Length) else (dict, guard.keys)
    is_plain = type(container.value) is kind and (OfType, container) in guards and not leads_from_draw(container)
    if not is_plain or not MIN_ITEMS <= len(labels) <= len(container.children):
        return ()
    found = [container.children.get(("item", (type(label), label))) for label in labels]
    paths = tuple(path for path in found if path is not None and fixes_literal(guards.get((OfConstant, path))))
    return paths if len(paths) == len(labels) else ()


def fixes_literal(guard: Guard | None) -> TypeGuard[OfConstant]:
    """Whether a guard requires a literal."""
    return isinstance(guard, OfConstant) and type(guard.value) in LITERALS


def keys_fixing(path: Path, guards: Guards) -> list[tuple[Any, ...]]:
    """Return the keys of the guards that fix a tuple of literals; an empty list if they do not fix all of it."""
    value = path.value
    keys: list[tuple[Any, ...]] = [(OfType, path), (Length, path)]
    if type(value) is not tuple or not all(key in guards for key in keys) or leads_from_draw(path):
        return []
    for index, item in enumerate(value):
        item_path = path.children.get(("item", (int, index)))
        own_keys = [] if item_path is None else keys_of_item(item_path, item, guards)
        if not own_keys:
            return []
        keys += own_keys
    return keys


def keys_of_item(path: Path, item: object, guards: Guards) -> list[tuple[Any, ...]]:
    """Return the keys of the guards that fix an item of a tuple; an empty list if no guards fix the item."""
    if type(item) is tuple:
        return keys_fixing(path, guards)
    guard = guards.get((OfConstant, path))
    return [(OfConstant, path)] if fixes_literal(guard) and guard.value is item else []
