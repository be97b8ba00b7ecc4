"""Objects by the modules that hold them: for those that do not say where they are, or are called otherwise there."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from thunder_core.workflow.artifact.format.manifest import Step

# A script has no name in another process, and these hold whatever was imported last.
PASSED_OVER = frozenset({"__main__", "__mp_main__", "builtins"})
# Most of what modules hold is of these types, which hold no more, or hold it under names of their own.
PLAIN = frozenset(
    {type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, dict, list, tuple, set, frozenset}
    | {str, bytes, int, float, complex, bool, type(None)}
)


def find_in_modules(wanted: Iterable[object]) -> dict[int, str]:
    """`module:name` or `module:name.attribute` of each object that a loaded module holds, by the object's id."""
    missing = {id(value) for value in wanted}
    found: dict[int, str] = {}
    for search in (_held, _held_by_instances):
        for path, value in search(missing):
            if better(path, found.get(id(value))):
                found[id(value)] = path
        missing -= found.keys()
        if not missing:
            break
    return found


def find_in_tables(wanted: Iterable[object], name_of: Callable[[object], str | None]) -> dict[int, tuple[Step, ...]]:
    """The way to each of the objects that a dict at the top of a module holds, under a key that can be found itself."""
    missing = {id(value) for value in wanted}
    places = [
        (id(value), path, key)
        for path, table in _tables_with(missing)
        for key, value in list(table.items())
        if id(value) in missing
    ]
    names = {id(key): name for _, _, key in places if (name := name_of(key)) is not None}
    names |= find_in_modules([key for _, _, key in places if id(key) not in names]) if places else {}
    return {found: (("import", path), ("keyed", names[id(key)])) for found, path, key in places if id(key) in names}


def _tables_with(wanted: set[int]) -> Iterator[tuple[str, dict[Any, object]]]:
    """The dicts at the top of modules, by their paths, that hold one of the wanted objects, given by their ids."""
    barren: dict[int, object] = {}  # dicts that hold none, of which `__builtins__` is in every module
    for name, namespace in _namespaces():
        for at, table in list(namespace.items()):
            if type(table) is not dict or id(table) in barren or not at.isidentifier() or at == "__dict__":
                continue
            if _holds(table, wanted):
                yield f"{name}:{at}", table
            else:
                barren[id(table)] = table


def better(path: str, known: str | None) -> bool:
    """Whether a path is to be preferred: public ones first, then short ones."""
    return known is None or _rank(path) < _rank(known)


def _rank(path: str) -> tuple[bool, int, str]:
    return "._" in path, len(path), path


def _namespaces() -> Iterator[tuple[str, dict[str, object]]]:
    for name, module in list(sys.modules.items()):
        if name in PASSED_OVER or not issubclass(type(module), types.ModuleType):  # which some only claim to be
            continue
        namespace = object.__getattribute__(module, "__dict__")
        if namespace.get("__spec__") is not None:  # others were made in this process, and cannot be imported in another
            yield name, namespace


def _held(wanted: set[int]) -> Iterator[tuple[str, object]]:
    """The paths of those of the wanted objects, given by their ids, that modules hold.

    Hundreds of thousands of objects are looked at, so a path is written for what is wanted alone.
    """
    for name, namespace in _namespaces():
        if id(namespace) in wanted:
            yield f"{name}:__dict__", namespace
        if _holds(namespace, wanted):
            for key, value in list(namespace.items()):
                if id(value) in wanted and key.isidentifier():
                    yield f"{name}:{key}", value


def _holds(table: dict[Any, object], wanted: set[int]) -> bool:
    """Whether a wanted object is among the values, as fast as C is."""
    return not wanted.isdisjoint(map(id, list(table.values())))


def _held_by_instances(wanted: set[int]) -> Iterator[tuple[str, object]]:
    """The paths of those of the wanted objects that are classes or attributes of what modules hold."""
    passed_over = {kind for kind in PLAIN if id(kind) not in wanted}
    barren: dict[int, object] = {}  # instances that hold none, most of which many modules import
    for name, namespace in _namespaces():
        for key, value in (("__dict__", namespace), *namespace.items()):
            if type(value) in passed_over or id(value) in barren or not key.isidentifier():
                continue
            if id(type(value)) in wanted:
                yield f"{name}:{key}.__class__", type(value)
            elif not _holds(_entries(value), wanted):
                barren[id(value)] = value
                continue
            for attribute, item in list(_entries(value).items()):
                if id(item) in wanted and str(attribute).isidentifier():
                    yield f"{name}:{key}.{attribute}", item


def _entries(value: object) -> dict[str, object]:
    if issubclass(type(value), type | types.FunctionType | types.ModuleType | dict):
        return {}
    try:
        entries = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return entries if type(entries) is dict else {}
