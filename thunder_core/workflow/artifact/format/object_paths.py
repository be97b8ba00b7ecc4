"""Paths from a model or function to objects that cannot be imported.

Saving an artifact finds the paths, and loading follows them.
"""

from __future__ import annotations

import functools
import inspect
import textwrap
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from thunder_core.backend.runtime.compiled import Specializations
from thunder_core.backend.runtime.program import Program
from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.storage.digest import digest_of
from thunder_core.tracing.capture.torch_facts.compiled_call import CompiledCall
from thunder_core.tracing.ir.literal import follow_path
from thunder_core.workflow.artifact.format.program_facts import Step
from thunder_core.workflow.artifact.trust.trust import Trust, trust_in

ObjectPath = tuple[Step, ...]

MAX_OBJECTS = 200_000  # objects that a search visits before it stops
SKIPPED_TYPES = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    torch.Tensor,
    torch.dtype,
    torch.device,
    types.ModuleType,
)
COMPILED_TYPES = (
    Specializations,
    Program,
    CompiledCall,
)  # no path leads through these objects, which another process lacks
OPENED_ATTRIBUTES = ("__func__", "fget", "fset", "__wrapped__", "__self__", "func", "args", "keywords")

STEP_FUNCTIONS: dict[str, Callable[[Any, Any, Trust], Any]] = {
    "type": lambda value, key, trust: type(value),
    "mro": lambda value, key, trust: type.mro(value)[key],
    "entry": lambda value, key, trust: value.__dict__[key],
    "globals": lambda value, key, trust: value.__globals__,
    "cell": lambda value, key, trust: value.__closure__[key].cell_contents,
    "item": lambda value, key, trust: item_of(value, key),
    "open": lambda value, key, trust: open_callable(value, key),
    "import": lambda value, key, trust: trust.import_object(key),
    "keyed": lambda value, key, trust: item_of(value, trust.import_object(key)),
}


def follow(subject: object, path: Iterable[Step], trust: Trust | None = None) -> Any:
    """Return the object at the end of a path. Raises LookupError if a step fails, or `ImportRefused`.

    By default, the subject's own modules are trusted. No code of the objects on the path is run.
    """
    value, trust = subject, trust or trust_in(subject)
    for step, key in path:
        try:
            value = STEP_FUNCTIONS[step](value, key, trust)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError, ImportError) as error:
            raise LookupError(f"{step} {key!r} of {type(value).__name__}") from error
    return value


def item_of(value: Any, key: object) -> Any:
    """Return an item of a dict, a list or a tuple; raise KeyError instead of calling `__missing__`."""
    if isinstance(value, dict):
        return dict.__getitem__(value, key) if dict.__contains__(value, key) else raise_missing_item(key)
    if type(value) not in (list, tuple):
        raise TypeError(f"a path cannot lead through {object_of_class(type(value))}")
    return value[key]


def raise_missing_item(key: object) -> Any:
    """Raise KeyError for a key that a dict does not contain."""
    raise KeyError(key)


def open_callable(value: object, key: str) -> Any:
    """Return a function inside one of Python's descriptors, methods or partial functions."""
    if type(value) not in OPENABLE_TYPES or key not in OPENED_ATTRIBUTES:
        raise TypeError(f"a path cannot lead to {key!r} of {object_of_class(type(value))}")
    return getattr(value, key)


def find_paths(subject: object, objects: Iterable[object]) -> dict[int, ObjectPath]:
    """Return the shortest path from a subject to each of the wanted objects, by the object's id."""
    missing = {id(value) for value in objects}
    paths: dict[int, ObjectPath] = {}
    seen: dict[int, Any] = {id(subject): subject}
    queue: deque[tuple[Any, ObjectPath]] = deque([(subject, ())])
    while queue and missing and len(seen) < MAX_OBJECTS:
        value, path = queue.popleft()
        if id(value) in missing:
            missing.discard(id(value))
            paths[id(value)] = path
        for step, child in steps_from(value):
            if id(child) not in seen and not issubclass(type(child), (*SKIPPED_TYPES, *COMPILED_TYPES)):
                seen[id(child)] = child
                queue.append((child, (*path, step)))
    return paths


def find_by_classes(objects: Iterable[object], path_of: Callable[[object], str | None]) -> dict[int, ObjectPath]:
    """Return a path to each of the wanted objects from a class that can be imported, by the object's id.

    The objects are properties, class methods and static methods under their function's name, and base classes.
    `path_of` returns the `module:qualname` of an object that can be imported, and None for other objects.
    """
    found_paths = ((id(value), _from_owner(value, path_of) or _from_subclass(value, path_of)) for value in objects)
    return {key: path for key, path in found_paths if path is not None}


def _from_owner(value: object, path_of: Callable[[object], str | None]) -> ObjectPath | None:
    function = value.fget if type(value) is property else getattr(value, "__func__", None)
    owner_name, _, name = getattr(function, "__qualname__", "").rpartition(".")
    owner = follow_path(f"{getattr(function, '__module__', '')}.{owner_name}") if owner_name else None
    if not issubclass(type(owner), type) or type.__getattribute__(owner, "__dict__").get(name) is not value:
        return None
    path = path_of(owner)
    return None if path is None else (("import", path), ("entry", name))


def _from_subclass(value: Any, path_of: Callable[[object], str | None]) -> ObjectPath | None:
    """Return a path from an importable subclass; subclasses in PyTorch are preferred, because PyTorch is trusted."""
    if not issubclass(type(value), type):
        return None
    paths = {path: kind for kind in type.__subclasses__(value) if (path := path_of(kind)) is not None}
    if not paths:
        return None
    path = min(paths, key=lambda path: (not path.startswith(("torch.", "torch:")), len(path), path))
    return ("import", path), ("mro", type.mro(paths[path]).index(value))


def steps_from(value: Any) -> Iterator[tuple[Step, Any]]:
    """Yield each step from an object, and the object at the end of the step; no code of the objects is run."""
    kind = type(value)
    if issubclass(kind, type):
        yield from ((("mro", index), base) for index, base in enumerate(type.mro(value)) if index)
    else:
        yield ("type", None), kind
    if kind is types.FunctionType:
        yield ("globals", None), value.__globals__
        yield from (
            (("cell", i), cell.cell_contents) for i, cell in enumerate(value.__closure__ or ()) if _is_filled(cell)
        )
    if kind in OPENABLE_TYPES:
        yield from (
            (("open", name), getattr(value, name))
            for name in OPENED_ATTRIBUTES
            if getattr(value, name, None) is not None
        )
    yield from _entries(value, kind)
    yield from _items(value, kind)


def _entries(value: object, kind: type) -> Iterator[tuple[Step, Any]]:
    getter = type.__getattribute__ if issubclass(kind, type) else object.__getattribute__
    try:
        entries = getter(value, "__dict__")
    except AttributeError:
        return
    if type(entries) in (dict, types.MappingProxyType):
        yield from ((("entry", key), item) for key, item in list(entries.items()) if type(key) is str)


def _items(value: Any, kind: type) -> Iterator[tuple[Step, Any]]:
    if issubclass(kind, dict) and kind.__getitem__ is dict.__getitem__:
        yield from ((("item", key), item) for key, item in list(dict.items(value)) if type(key) in (str, int))
    elif kind in (list, tuple):
        yield from ((("item", index), item) for index, item in enumerate(value))


OPENABLE_TYPES = (property, staticmethod, classmethod, types.MethodType, functools.partial)


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # not assigned yet
        return False


def code_digest(value: object) -> str:
    """Return a digest of a function's or class's source, which reveals later changes; empty for other objects."""
    if not isinstance(value, types.FunctionType | type):
        return ""
    try:
        return digest_of(textwrap.dedent(inspect.getsource(value)).encode())
    except (OSError, TypeError):
        code = getattr(value, "__code__", None)
        return digest_of(code.co_code) if code is not None else ""
