"""Find objects in loaded modules: objects that do not name their module, or have another name in the module."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from thunder_core.workflow.artifact.format.program_facts import Step

# Not searched: another process cannot import a script, and an interactive shell binds its last result in `builtins`.
SKIPPED_MODULES = frozenset({"__main__", "__mp_main__", "builtins"})
# `_held_by_instances` skips values of these types, which most objects in modules have: they have no attributes to
# search, or their contents are found by their own `__module__`.
SKIPPED_TYPES = frozenset(
    {type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, dict, list, tuple, set, frozenset}
    | {str, bytes, int, float, complex, bool, type(None)}
)


def find_in_modules(objects: Iterable[object]) -> dict[int, str]:
    """Return `module:name` or `module:name.attribute` for each object in a loaded module, by the object's id."""
    missing = {id(value) for value in objects}
    paths: dict[int, str] = {}
    for search in (_paths_of, _held_by_instances):
        for path, value in search(missing):
            if is_better_path(path, paths.get(id(value))):
                paths[id(value)] = path
        missing -= paths.keys()
        if not missing:
            break
    return paths


def find_in_tables(objects: Iterable[object], name_of: Callable[[object], str | None]) -> dict[int, tuple[Step, ...]]:
    """Return the paths of objects that are values of module-level dicts, by the object's id.

    Such a path imports the dict and looks up the key. An object is left out if its key cannot be saved.
    """
    missing = {id(value) for value in objects}
    keyed_objects = [
        (id(value), path, key)
        for path, table in _tables_with(missing)
        for key, value in list(table.items())
        if id(value) in missing
    ]
    names = {id(key): name for _, _, key in keyed_objects if (name := name_of(key)) is not None}
    names |= find_in_modules([key for _, _, key in keyed_objects if id(key) not in names]) if keyed_objects else {}
    return {
        object_id: (("import", path), ("keyed", names[id(key)]))
        for object_id, path, key in keyed_objects
        if id(key) in names
    }


def _tables_with(ids: set[int]) -> Iterator[tuple[str, dict[Any, object]]]:
    """Yield the dicts at the top level of modules, with their paths, that contain an object with one of these ids."""
    without_wanted: dict[int, object] = {}  # dicts without such objects; `__builtins__` is in every module
    for name, namespace in _namespaces():
        for attribute, table in list(namespace.items()):
            if type(table) is not dict or id(table) in without_wanted:
                continue
            if not attribute.isidentifier() or attribute == "__dict__":
                continue
            if _has_wanted_value(table, ids):
                yield f"{name}:{attribute}", table
            else:
                without_wanted[id(table)] = table


def is_better_path(path: str, known_path: str | None) -> bool:
    """Whether a path is preferred to a known path: public names are preferred to private names, then shorter paths."""
    return known_path is None or _rank(path) < _rank(known_path)


def _rank(path: str) -> tuple[bool, int, str]:
    return "._" in path or ":_" in path, len(path), path


def _namespaces() -> Iterator[tuple[str, dict[str, object]]]:
    for name, module in list(sys.modules.items()):
        if name in SKIPPED_MODULES:
            continue
        if not issubclass(type(module), types.ModuleType):  # some objects in `sys.modules` are not modules
            continue
        namespace = object.__getattribute__(module, "__dict__")
        if (
            namespace.get("__spec__") is not None
        ):  # a module without a spec was made in this process: no import finds it
            yield name, namespace


def _paths_of(ids: set[int]) -> Iterator[tuple[str, object]]:
    """Yield the paths of objects with these ids in modules.

    The search visits hundreds of thousands of objects, so it builds paths only for the wanted objects.
    """
    for name, namespace in _namespaces():
        if id(namespace) in ids:
            yield f"{name}:__dict__", namespace
        if _has_wanted_value(namespace, ids):
            for key, value in list(namespace.items()):
                if id(value) in ids and key.isidentifier():
                    yield f"{name}:{key}", value


def _has_wanted_value(table: dict[Any, object], ids: set[int]) -> bool:
    """Whether one of the wanted objects is a value of a dict."""
    return not ids.isdisjoint(map(id, list(table.values())))


def _held_by_instances(ids: set[int]) -> Iterator[tuple[str, object]]:
    """Yield the paths of wanted objects that are the class, or an instance attribute, of an object in a module."""
    skipped_types = {kind for kind in SKIPPED_TYPES if id(kind) not in ids}
    without_wanted: dict[int, object] = {}  # instances without wanted objects; many modules import the same instance
    for name, namespace in _namespaces():
        for key, value in (("__dict__", namespace), *namespace.items()):
            if type(value) in skipped_types or id(value) in without_wanted or not key.isidentifier():
                continue
            if id(type(value)) in ids:
                yield f"{name}:{key}.__class__", type(value)
            elif not _has_wanted_value(_entries(value), ids):
                without_wanted[id(value)] = value
                continue
            for attribute, item in list(_entries(value).items()):
                if id(item) in ids and str(attribute).isidentifier():
                    yield f"{name}:{key}.{attribute}", item


def _entries(value: object) -> dict[str, object]:
    if issubclass(type(value), type | types.FunctionType | types.ModuleType | dict):
        return {}
    try:
        entries = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return entries if type(entries) is dict else {}
