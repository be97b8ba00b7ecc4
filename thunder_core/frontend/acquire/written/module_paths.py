"""Paths and guards that only read the module and libraries, which a prologue skips while these are unchanged."""

from __future__ import annotations

from collections import OrderedDict
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from thunder_core.frontend.acquire.outside.guards import (
    AllApart,
    Apart,
    Equal,
    Guard,
    Identical,
    Is,
    OfType,
    SameAs,
    TensorMetadata,
    Truth,
    Values,
)
from thunder_core.frontend.acquire.outside.object_guards import (
    Absent,
    DefinesNone,
    HasCode,
    Keys,
    Length,
    NoHooks,
    OverridesNone,
    SpecialMethods,
)
from thunder_core.frontend.acquire.outside.paths import Path, namespace
from thunder_core.frontend.acquire.outside.sharp import is_users_file
from thunder_core.tracing.library.capturing_hooks import HOOKS
from thunder_core.tracing.library.changes.class_entries import class_entry
from thunder_core.tracing.library.changes.class_names import may_become_descriptor
from thunder_core.tracing.library.changes.module_state import NAMESPACE, ROOT, ReadStep

IMMUTABLE = (tuple, bool, int, float, complex, str, bytes, type(None))
# Guards whose conditions depend on nothing but the values at their paths, which are watched.
OF_VALUES = (AllApart, Apart, Equal, Identical, Is, OfType, SameAs, Values)
OF_CONTENTS = (Absent, Keys, Length, Truth)
OF_CLASSES = (DefinesNone, SpecialMethods)
# All guards whose conditions run no code of the user.
QUIET_GUARDS = (*OF_VALUES, *OF_CONTENTS, *OF_CLASSES, HasCode, NoHooks, OverridesNone, TensorMetadata)
QUIET_STEPS = ("root", "globals", "class", "entry", "closure", "size", "stride", "count", "expression", "tensor")
OWNERS_IN_C = (type, ModuleType, FunctionType, MethodType, CodeType, CellType, torch.Tensor)


class ModulePaths:
    """Numbers the objects that are read from a module by entries of `__dict__` and items of dicts and tuples.

    `steps` lead from the module, which has number 0, to one more object each. Steps also begin at classes and at the
    globals of installed libraries. The globals of the user's own modules change too often.
    """

    def __init__(self, root: Path) -> None:
        self.steps: list[ReadStep] = []
        self.roots: list[Any] = []
        self._numbers: dict[Path, int | None] = {root: 0 if isinstance(root.value, torch.nn.Module) else None}

    def number(self, path: Path) -> int | None:
        """Return the number of the object at a path; None if the path does not only read the module."""
        if path not in self._numbers:
            step = self._step(path)
            self._numbers[path] = None if step is None else self._add(step)
        return self._numbers[path]

    def covers(self, guard: Guard) -> bool:
        """Whether a guard holds as long as the numbered objects do not change."""
        numbers = [self.number(path) for path in (guard.subject, guard.path, *guard.other_paths)]
        if None in numbers:
            return False
        if isinstance(guard, NoHooks) and numbers[0] is not None:
            for name in HOOKS:
                self._add((numbers[0], name))
            return True
        return type(guard) in (*OF_VALUES, *OF_CLASSES) or has_known_contents(guard) or has_known_entries(guard)

    def _add(self, step: ReadStep) -> int:
        self.steps.append(step)
        return len(self.steps)

    def _step(self, path: Path) -> ReadStep | None:
        """Return the last step of a path that only reads the module."""
        if path.parent is None:
            return self._root_step(path)
        if path.step == "attribute" and type(path.parent.value) is type and type(path.value) is FunctionType:
            owner, key = self.number(path.parent), path.key
        elif path.step == "attribute" and path.key == "__dict__" and type(path.parent.value) is not type:
            owner, key = self.number(path.parent), NAMESPACE
        elif path.step == "entry" and type(path.key) is str:
            owner, key = self.number(namespace(path.parent)), path.key
        elif path.step == "item" and type(path.parent.value) in (dict, tuple) and type(path.key) in (str, int):
            owner, key = self.number(path.parent), path.key
        else:
            return None
        return None if owner is None else (owner, key)

    def _root_step(self, root: Path) -> ReadStep | None:
        """Return the step to a class, or to the globals of a library."""
        is_class = root.step == "class" and type(root.value) is type
        if not is_class and not (
            root.step == "globals" and type(root.value) is dict and belongs_to_library(root.value)
        ):
            return None
        self.roots.append(root.value)
        return ROOT, len(self.roots) - 1


def belongs_to_library(module_globals: dict[str, Any]) -> bool:
    """Whether a module belongs to an installed library or to Python's standard library, whose globals hardly change."""
    file = module_globals.get("__file__")  # `builtins` has none
    return isinstance(file, str) and not is_users_file(file)


def has_known_contents(guard: Guard) -> bool:
    """Whether a guard is on the contents of a dict, whose version is watched, or of an immutable value."""
    path = guard.subject
    if type(guard) not in OF_CONTENTS:
        return False
    if path.key == "__dict__":
        return True
    kind = type(path.value)
    return kind is dict or (kind is OrderedDict and not isinstance(guard, Keys)) or kind in IMMUTABLE


def has_known_entries(guard: Guard) -> bool:
    """Whether a guard is on entries of a class that no change of another class makes data descriptors."""
    if not isinstance(guard, OverridesNone):
        return False
    return not any(may_become_descriptor(class_entry(guard.path.value, name)) for name in guard.names)


def may_run_user_code(guard: Guard) -> bool:
    """Whether a check of a guard, or a read of its path, may run code of the user, for example a property."""
    return not isinstance(guard, QUIET_GUARDS) or not all(map(is_quiet, (guard.path, *guard.other_paths)))


def is_quiet(path: Path) -> bool:
    """Whether reading a path runs no code of the user."""
    return all(is_quiet_step(step) for step in path.lineage())


def is_quiet_step(path: Path) -> bool:
    """Whether a step of a path runs no code of the user: a read by Python itself, without a class's own methods."""
    if path.step in QUIET_STEPS or path.parent is None:
        return True
    if path.step == "item":
        return type(path.parent.value) in (dict, tuple, list, OrderedDict)
    return path.step == "attribute" and (path.key == "__dict__" or type(path.parent.value) in OWNERS_IN_C)
