"""Guard probes of values outside the arguments: a probe replaces a guarded value, and a guard must fail.

The values are attributes of the subject (the compiled module or function) and globals of modules.
"""

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

ARGUMENTS = ("args", "kwargs")  # the roots of paths to arguments, which `argument_probes` probes
NEVER_REPLACED = frozenset({"builtins", "sys", "typing"})  # all code calls the functions of these modules
Entry = tuple[Any, Any]  # a dict, and a key of the dict


class AnotherFunction(RuntimeError):
    """Raised by the function that replaces a traced function in a probe."""


def run_another(*args: object, **kwargs: object) -> Any:
    """Raise `AnotherFunction`. In a probe, this function replaces a traced function."""
    raise AnotherFunction("this is not the function that was traced")


def path_probes(program: Program, call: SubjectCall, *, functions: bool = True) -> Iterator[Probe]:
    """Yield probes with other values for each guarded value that can be replaced; `functions` includes functions."""
    for guard in program.guards:
        entry = entry_of_path(guard.path, call) if guard.plain_path is None else entry_at(guard.plain_path, call)
        if entry is None:
            continue
        container, key = entry
        if not functions and isinstance(container[key], FunctionType | BuiltinFunctionType):
            continue
        for description, replacement in other_values(container[key]):
            change = replace_entry(container, key, replacement)
            yield Probe(f"{guard.path} {description}", call.copy_arguments, change, guard.path, guard.words)


def other_values(value: object) -> Iterator[tuple[str, Any]]:
    """Yield pairs of a description and a value that differs from the given value."""
    if isinstance(value, FunctionType | BuiltinFunctionType):
        yield "another function", run_another
    else:
        yield from nearby_values(value)


def entry_at(path: PlainPath, call: SubjectCall) -> Entry | None:
    """Return the dict and the key of the value at a path; None if the value cannot be replaced.

    A value in a tuple cannot be replaced alone, so its entry is the entry of the tuple.
    """
    (kind, root), (step, key) = path[0], path[-1]
    if len(path) == 1 or (kind == "globals" and root in NEVER_REPLACED) or (root in ARGUMENTS and len(path) == 2):
        return None
    owner = object_at(path[:-1], call)
    container = getattr(owner, "__dict__", None) if step == "entry" else owner
    if isinstance(container, tuple):
        return entry_at(path[:-1], call)
    return (container, key) if isinstance(container, dict) and key in container else None


def object_at(path: PlainPath, call: SubjectCall) -> Any:
    """Return the object at a path in the subject or in a module's globals; None for other roots."""
    kind, root = path[0]
    if kind == "root":
        return value_at_path(path, call.roots[root]) if root in call.roots else None
    module = sys.modules.get(root) if kind == "globals" else None
    return None if module is None else value_at_path((("root", root), *path[1:]), vars(module))


def entry_of_path(path: str, call: SubjectCall) -> Entry | None:
    """Return the `__dict__` and the key of an attribute or a property at a path, such as `module.config.use_cache`.

    A property usually stores its value under its name with a leading underscore. Returns None for any other path.
    """
    try:
        node = ast.parse(path, mode="eval").body
        if not isinstance(node, ast.Attribute):
            return None
        namespace = vars(value_at(node.value, call.roots))
    except (SyntaxError, LookupError, AttributeError, TypeError, ValueError):
        return None
    key = next((key for key in (node.attr, f"_{node.attr}") if key in namespace), None)
    return None if key is None or not isinstance(namespace, dict) else (namespace, key)


@contextmanager
def replace_entry(container: Any, key: object, value: object) -> Iterator[None]:
    """Replace the value of a dict's key while the block runs."""
    before = container[key]
    container[key] = value
    try:
        yield
    finally:
        container[key] = before
