"""Paths and guards that only read the module and libraries. A prologue skips them while these are unchanged."""

from __future__ import annotations

from collections import OrderedDict
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from thunder_core.frontend.acquire.outside.guards.classes import DefinesNone, KeepsCall, OverridesNone, SpecialMethods
from thunder_core.frontend.acquire.outside.guards.containers import Absent, ConstantItems, Keys, Length
from thunder_core.frontend.acquire.outside.guards.guard import Guard
from thunder_core.frontend.acquire.outside.guards.identities import AllDifferent, DifferentFrom, SameAs
from thunder_core.frontend.acquire.outside.guards.module_hooks import NoHooks
from thunder_core.frontend.acquire.outside.guards.objects import HasCode
from thunder_core.frontend.acquire.outside.guards.tensors import NoAccumulationHooks, SharesStorage, TensorMetadata
from thunder_core.frontend.acquire.outside.guards.values import (
    Equal,
    HasBuiltinValue,
    Identical,
    Is,
    OfType,
    Truth,
    Values,
)
from thunder_core.frontend.acquire.outside.paths import Path, namespace
from thunder_core.frontend.acquire.outside.sharp import is_users_file
from thunder_core.tracing.library.capturing_hooks import HOOKS
from thunder_core.tracing.library.changes.class_entries import class_entry
from thunder_core.tracing.library.changes.class_names import may_become_descriptor
from thunder_core.tracing.library.changes.module_state import NAMESPACE, ROOT, ReadStep

IMMUTABLE_CLASSES = (tuple, bool, int, float, complex, str, bytes, type(None))
# Guards on the identity, the class or the value of objects. Replacing an object at a path is detected.
VALUE_GUARDS = (AllDifferent, DifferentFrom, Equal, HasBuiltinValue, Identical, Is, OfType, SameAs, Values)
CONTENTS_GUARDS = (Absent, ConstantItems, Keys, Length, Truth)
CLASS_GUARDS = (DefinesNone, KeepsCall, SpecialMethods)
# Guards whose conditions run no code of the user.
QUIET_GUARDS = (
    *(*VALUE_GUARDS, *CONTENTS_GUARDS, *CLASS_GUARDS),
    *(HasCode, NoAccumulationHooks, NoHooks, OverridesNone, SharesStorage, TensorMetadata),
)
QUIET_STEPS = ("root", "globals", "class", "entry", "closure", "size", "stride", "count", "expression", "tensor")
OWNERS_IN_C = (type, ModuleType, FunctionType, MethodType, CodeType, CellType, torch.Tensor)


class ModulePaths:
    """The indices of the objects that a prologue reads from a module, by entries of `__dict__` and items of containers.

    The module has index 0, and `steps[n]` leads to the object with index n + 1. Steps begin at the module, or at one of
    the `roots`: classes and the globals of installed libraries. The globals of the user's own modules have no indices,
    because they change too often.
    """

    def __init__(self, root: Path) -> None:
        self.steps: list[ReadStep] = []
        self.roots: list[Any] = []
        self._indices: dict[Path, int | None] = {root: 0 if isinstance(root.value, torch.nn.Module) else None}

    def index(self, path: Path) -> int | None:
        """Return the index of the object at a path; None if a step of the path is not a read that can be watched."""
        if path not in self._indices:
            step = self._step(path)
            self._indices[path] = None if step is None else self._add(step)
        return self._indices[path]

    def covers(self, guard: Guard) -> bool:
        """Whether a guard holds as long as the objects with indices do not change."""
        indices = [self.index(path) for path in (guard.subject, guard.path, *guard.other_paths)]
        if None in indices:
            return False
        if isinstance(guard, NoHooks) and indices[0] is not None:
            for name in HOOKS:
                self._add((indices[0], name))
            return True
        return type(guard) in (*VALUE_GUARDS, *CLASS_GUARDS) or has_known_contents(guard) or has_known_entries(guard)

    def _add(self, step: ReadStep) -> int:
        """Add a step, and return the index of the object that the step leads to."""
        self.steps.append(step)
        return len(self.steps)

    def _step(self, path: Path) -> ReadStep | None:
        """Return the last step of a path; None if the path has no index."""
        if path.parent is None:
            return self._root_step(path)
        if path.step == "attribute" and type(path.parent.value) is type and type(path.value) is FunctionType:
            owner, key = self.index(path.parent), path.key
        elif path.step == "attribute" and path.key == "__dict__" and type(path.parent.value) is not type:
            owner, key = self.index(path.parent), NAMESPACE
        elif path.step == "entry" and type(path.key) is str:
            owner, key = self.index(namespace(path.parent)), path.key
        elif path.step == "item" and type(path.parent.value) in (dict, tuple) and type(path.key) in (str, int):
            owner, key = self.index(path.parent), path.key
        else:
            return None
        return None if owner is None else (owner, key)

    def _root_step(self, root: Path) -> ReadStep | None:
        """Return the step to a class or to the globals of a library; None for another root."""
        is_class = root.step == "class" and type(root.value) is type
        if not is_class and not (
            root.step == "globals" and type(root.value) is dict and belongs_to_library(root.value)
        ):
            return None
        self.roots.append(root.value)
        return ROOT, len(self.roots) - 1


def belongs_to_library(module_globals: dict[str, Any]) -> bool:
    """Whether a module belongs to an installed library or to Python's standard library: its globals rarely change."""
    file = module_globals.get("__file__")  # `builtins` has none
    return isinstance(file, str) and not is_users_file(file)


def has_known_contents(guard: Guard) -> bool:
    """Whether a guard is on the contents of an immutable value, or of a dict, whose changes are detected."""
    path = guard.subject
    if type(guard) not in CONTENTS_GUARDS:
        return False
    if path.key == "__dict__":
        return True
    kind = type(path.value)
    return kind is dict or (kind is OrderedDict and not isinstance(guard, Keys)) or kind in IMMUTABLE_CLASSES


def has_known_entries(guard: Guard) -> bool:
    """Whether a guard requires that entries of a class are no data descriptors, and these entries can never become
    such.

    No change of the entries' classes adds a `__set__`.
    """
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
    """Whether the last step of a path runs no code of the user, such as a property or a `__getitem__`."""
    if path.step in QUIET_STEPS or path.parent is None:
        return True
    if path.step == "item":
        return type(path.parent.value) in (dict, tuple, list, OrderedDict)
    return path.step == "attribute" and (path.key == "__dict__" or type(path.parent.value) in OWNERS_IN_C)
