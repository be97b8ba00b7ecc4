"""Guards on the attributes, states and caches of objects."""

from __future__ import annotations

import types
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.frontend.acquire.outside.guards.guard import Guard, GuardScope
from thunder_core.frontend.interpreter.lookup import python_method, type_lookup
from thunder_core.tracing.ir.literal import LibraryFunction, literal

HAS_FIRST_CODE = LibraryFunction("thunder_core.tracing.library.changes.function_codes", "has_first_code")
LACKS = LibraryFunction("thunder_core.tracing.library.objects", "lacks")
CAN_DELETE = LibraryFunction("thunder_core.frontend.acquire.outside.snapshots", "can_delete")
STATE_OF = LibraryFunction("thunder_core.tracing.library.states", "state_of")


def has_own_fallback(kind: type) -> bool:
    """Whether a class has a `__getattr__` in Python, which guards must not call, because it may have effects."""
    fallback = python_method(kind, "__getattr__")
    is_users = fallback is not None and fallback is not torch.nn.Module.__getattr__
    return is_users and type_lookup(kind, "__getattribute__") is object.__getattribute__


@dataclass(frozen=True, eq=False)
class Lacks(Guard):
    """Requires an object without an attribute of this name."""

    name: str

    @property
    def key(self) -> tuple[Any, ...]:
        return (Lacks, self.path, self.name)

    def condition(self, subject: str, scope: GuardScope) -> str:
        if has_own_fallback(type(self.path.value)):
            return f"{scope.function(LACKS)}({subject}, {self.name!r})"
        return f"not hasattr({subject}, {self.name!r})"

    @property
    def words(self) -> str:
        return f"had no attribute {self.name!r}"


@dataclass(frozen=True, eq=False)
class CanDelete(Guard):
    """Requires that an object itself has, or lacks, an attribute that the program deletes."""

    name: str
    exists: bool

    @property
    def key(self) -> tuple[Any, ...]:
        return (CanDelete, self.path, self.name)

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{'' if self.exists else 'not '}{scope.function(CAN_DELETE)}({subject}, {self.name!r})"

    @property
    def words(self) -> str:
        return f"{'had' if self.exists else 'lacked'} {self.name!r}, which the program deletes"


@dataclass(frozen=True, eq=False)
class HasCode(Guard):
    """Requires a function with this code. `is_first`: it is the first code that Thunder has seen in the function."""

    code: types.CodeType
    is_first: bool

    def condition(self, subject: str, scope: GuardScope) -> str:
        if self.is_first:
            return f"{scope.function(HAS_FIRST_CODE)}({subject})"
        return f"{subject}.__code__ is {scope.constant(self.code, f'{self.code.co_name}_code')}"

    @property
    def words(self) -> str:
        return f"had the code of line {self.code.co_firstlineno}"


@dataclass(frozen=True, eq=False)
class Unbound(Guard):
    """Requires a closure variable without a value."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{subject} == type({subject})()"  # an empty cell

    @property
    def words(self) -> str:
        return "had no value"


@dataclass(frozen=True, eq=False)
class Misses(Guard):
    """Requires a function under `functools.lru_cache` whose cache has this number of misses."""

    count: int

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{subject}.cache_info()[1] == {self.count}"

    @property
    def words(self) -> str:
        return f"had computed {self.count} values"


@dataclass(frozen=True, eq=False)
class HasState(Guard):
    """Requires an object of C in this state."""

    state: Any

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{scope.function(STATE_OF)}({subject}) == {literal(self.state, scope)}"

    @property
    def words(self) -> str:
        return f"had the state {self.state!r:.60}"
