"""Guards on values: constants, numbers, and the truth of conditions on several numbers."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import Any

from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.quick_objects import with_quick_init
from thunder_core.foundation.type_flags import HEAP_TYPE
from thunder_core.frontend.acquire.outside.guards.guard import Guard, GuardScope, exact_type_condition
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.tracing.ir.constants import SINGLETONS, bind_constant, is_literal, name_of
from thunder_core.tracing.ir.literal import LibraryFunction, literal
from thunder_core.tracing.ir.tree import leaves

SAME_VALUES = LibraryFunction("thunder_core.tracing.library.objects", "same_values")
NUMBERS = (float, int)  # classes of numbers that may vary between calls
BASES_WITH_VALUES = (int, float, complex, str, bytes)  # classes whose subclasses inherit a value
EXACTLY_EQUAL_CLASSES = (bool, int, str, bytes, type(None))  # values of one class that are equal are the same


@dataclass(frozen=True, eq=False)
class OfConstant(Guard):
    """Requires a constant. A path has at most one such guard: `Is` or `Equal`."""

    value: Any

    @property
    def key(self) -> tuple[Any, ...]:
        return (OfConstant, self.path)


@with_quick_init
@dataclass(frozen=True, eq=False)
class Is(OfConstant):
    """Requires this object: a singleton, a class, a function or a module."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        is_class = isinstance(self.value, type)
        name = scope.constant(self.value, self.value.__name__) if is_class else bind_constant(self.value, scope)
        return f"{subject} is {name}"

    @property
    def words(self) -> str:
        return f"was {name_of(self.value)}"


@dataclass(frozen=True, eq=False)
class Equal(OfConstant):
    """Requires an equal value of the same type: 1, 1.0 and True differ, and so do 0.0 and -0.0; NaN equals NaN.

    A string differs from an equal member of an enumeration of strings.
    """

    def condition(self, subject: str, scope: GuardScope) -> str:
        if isinstance(self.value, float) and (self.value == 0.0 or math.isnan(self.value)):
            return f"type({subject}) is float and str({subject}) == {str(self.value)!r}"
        if isinstance(self.value, complex | slice | range):
            return f"{scope.function(SAME_VALUES)}({subject}, {literal(self.value, scope)})"
        is_equal = f"{subject} == {literal(self.value, scope)}"
        return f"{exact_type_condition(subject, type(self.value), scope)} and {is_equal}"  # user code has other types

    @property
    def words(self) -> str:
        return f"was {self.value!r}"

    @property
    def guards_number(self) -> bool:
        """Whether the value is a number that may vary between calls."""
        return type(self.value) in NUMBERS


@dataclass(frozen=True, eq=False)
class Identical(Guard):
    """Requires one specific object, which is a constant of the prologue."""

    value: Any

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{subject} is {scope.constant(self.value, 'known')}"

    @property
    def words(self) -> str:
        return f"was a specific {type(self.value).__name__}"


@dataclass(frozen=True, eq=False)
class HasBuiltinValue(Guard):
    """Requires an instance of a subclass of a built-in class of numbers or strings, with this built-in value."""

    base: type

    def condition(self, subject: str, scope: GuardScope) -> str:
        value = self.path.value
        if self.base in (float, complex):
            return f"{self.base.__name__}.__repr__({subject}) == {self.base.__repr__(value)!r}"
        return f"{self.base.__name__}.__eq__({subject}, {literal(builtin_value(value, self.base), scope)})"

    @property
    def words(self) -> str:
        return f"had the value {builtin_value(self.path.value, self.base)!r:.60}"


def base_with_value(kind: type) -> type | None:
    """Return the built-in class of numbers or strings from which a class of Python inherits a value, or None.

    NumPy's numbers, whose classes are static types, have guards of their own.
    """
    is_from_python = kind.__flags__ & HEAP_TYPE
    return next((base for base in BASES_WITH_VALUES if is_from_python and issubclass(kind, base)), None)


def builtin_value(value: Any, base: Any) -> Any:
    """Return the value of an instance of a subclass of a class in `BASES_WITH_VALUES`, bypassing its overrides."""
    if base is int:
        return int.__add__(value, 0)
    return base.__getitem__(value, slice(None)) if base in (str, bytes) else base.__add__(value, 0)


@with_quick_init
@dataclass(frozen=True, eq=False)
class OfType(Guard):
    """Requires an object of exactly this class."""

    kind: type

    def condition(self, subject: str, scope: GuardScope) -> str:
        return exact_type_condition(subject, self.kind, scope)

    @property
    def words(self) -> str:
        return f"was {object_of_class(self.kind)}"


@dataclass(frozen=True, eq=False)
class NumberInC(Guard):
    """Requires a member of a pybind11 enumeration or a `ReduceOp`, which are compared by class and hash."""

    value: Any

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{exact_type_condition(subject, type(self.value), scope)} and hash({subject}) == {hash(self.value)}"

    @property
    def words(self) -> str:
        return f"was {self.value}"


@dataclass(frozen=True, eq=False)
class Values(Guard):
    """Requires a tuple of equal constants of the same types, compared as by `Equal`, also within inner tuples.

    The condition first compares the identity with that of the traced tuple, because this reads no item.
    """

    values: tuple[Any, ...]

    def condition(self, subject: str, scope: GuardScope) -> str:
        equal = self._equality_expression(subject, scope)
        if not is_literal(self.values):
            return equal
        name = self.path.key.strip("_") if isinstance(self.path.key, str) else "values"
        return f"{subject} is {scope.constant(self.values, f'traced_{name}')} or {equal}"

    def _equality_expression(self, subject: str, scope: GuardScope) -> str:
        text = literal(self.values, scope)
        if all(type(value) in EXACTLY_EQUAL_CLASSES for value in self.values):
            types = literal([type(value) for value in self.values], scope)
            return f"type({subject}) is tuple and {subject} == {text} and [*map(type, {subject})] == {types}"
        return f"{scope.function(SAME_VALUES)}({subject}, {text})"

    @property
    def words(self) -> str:
        return f"was {self.values!r}"

    @property
    def guards_number(self) -> bool:
        """Whether one of the values, or a value in an inner tuple, is a number that may vary between calls."""
        return any(type(value) in NUMBERS for value in leaves(self.values))


@with_quick_init
@dataclass(frozen=True, eq=False)
class Truth(Guard):
    """Requires an object that is true, or an object that is false."""

    is_true: bool

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{'' if self.is_true else 'not '}{subject}"

    @property
    def words(self) -> str:
        return f"was {'true' if self.is_true else 'false'}"


def constant_guard(path: Path, value: object) -> OfConstant:
    """Return the guard on a constant: by identity for a singleton or an enumeration member, otherwise by equality."""
    by_identity = type(value) in SINGLETONS or isinstance(value, enum.Enum)
    return Is(path, value) if by_identity else Equal(path, value)
