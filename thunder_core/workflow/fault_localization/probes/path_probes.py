"""Probes of guarded values of the subject and of modules, which are replaced by other values."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import BuiltinFunctionType, FunctionType
from typing import Any

from thunder_core.backend.runtime.program import Program
from thunder_core.backend.runtime.selector import value_at_path
from thunder_core.tracing.ir.requirement import PlainPath
from thunder_core.workflow.fault_localization.probes.argument_probes import nearby_values
from thunder_core.workflow.fault_localization.probes.calls import SubjectCall
from thunder_core.workflow.fault_localization.probes.probe import Probe
from thunder_core.workflow.fault_localization.probes.unpacking import value_at

ARGUMENTS = ("args", "kwargs")  # their values are probed as arguments
UNTOUCHED = frozenset({"builtins", "sys", "typing"})  # modules whose functions everything calls
Entries = tuple[Any, Any]  # a dict, and a key of it


class AnotherFunction(RuntimeError):
    """Raised by the replacement of a function."""


def run_another(*args: object, **kwargs: object) -> Any:
    """Raise `AnotherFunction`, as the replacement of the traced function."""
    raise AnotherFunction("this is not the function that was traced")


def path_probes(program: Program, call: SubjectCall, *, functions: bool = True) -> Iterator[Probe]:
    """Yield probes with another value for each checked value that can be changed; `functions` includes functions."""
    for guard in program.guards:
        entry = entry_of_path(guard.path, call) if guard.plain_path is None else entry_at(guard.plain_path, call)
        if entry is None:
            continue
        entries, key = entry
        if not functions and isinstance(entries[key], FunctionType | BuiltinFunctionType):
            continue
        for what, replacement in other_values(entries[key]):
            change = replace_entry(entries, key, replacement)
            yield Probe(f"{guard.path} {what}", call.copy_arguments, change, guard.path, guard.words)


def other_values(value: object) -> Iterator[tuple[str, Any]]:
    """Yield values that differ from a value at a path."""
    if isinstance(value, FunctionType | BuiltinFunctionType):
        yield "another function", run_another
    else:
        yield from nearby_values(value)


def entry_at(path: PlainPath, call: SubjectCall) -> Entries | None:
    """Return the container and the key at a path; if the container is a tuple, its own container and key."""
    (kind, root), (step, key) = path[0], path[-1]
    if len(path) == 1 or (kind == "globals" and root in UNTOUCHED) or (root in ARGUMENTS and len(path) == 2):
        return None
    holder = object_at(path[:-1], call)
    entries = getattr(holder, "__dict__", None) if step == "entry" else holder
    if isinstance(entries, tuple):
        return entry_at(path[:-1], call)
    return (entries, key) if isinstance(entries, dict) and key in entries else None


def object_at(path: PlainPath, call: SubjectCall) -> Any:
    """Return the object at a path in the subject or in a module's globals; None for other roots."""
    kind, root = path[0]
    if kind == "root":
        return value_at_path(path, call.roots[root]) if root in call.roots else None
    module = sys.modules.get(root) if kind == "globals" else None
    return None if module is None else value_at_path((("root", root), *path[1:]), vars(module))


def entry_of_path(path: str, call: SubjectCall) -> Entries | None:
    """Return the `__dict__` and the key for a path such as `module.config.use_cache`, for an attribute or a property.

    A property stores its value under its name with a leading underscore.
    """
    try:
        node = ast.parse(path, mode="eval").body
        if not isinstance(node, ast.Attribute):
            return None
        entries = vars(value_at(node.value, call.roots))
    except (SyntaxError, LookupError, AttributeError, TypeError, ValueError):
        return None
    key = next((key for key in (node.attr, f"_{node.attr}") if key in entries), None)
    return None if key is None or not isinstance(entries, dict) else (entries, key)


@contextmanager
def replace_entry(entries: Any, key: object, value: object) -> Iterator[None]:
    """Replace an entry of a dict while the block runs."""
    before = entries[key]
    entries[key] = value
    try:
        yield
    finally:
        entries[key] = before
