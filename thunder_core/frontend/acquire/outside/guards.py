"""Guards on values, classes, identities and tensors that the program read from outside.

Each kind of guard is a frozen dataclass with a path and the facts that tracing found at the path. A guard returns its
condition as Python source, and a description of its requirement in words.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_core.foundation.quick_objects import with_quick_init
from thunder_core.foundation.type_flags import HEAP_TYPE
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.tracing.ir.constants import SINGLETONS, bind_constant, is_literal, name_of
from thunder_core.tracing.ir.literal import LibraryFunction, Scope, literal, sizes_before_counts
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.tree import leaves

SAME_VALUES = LibraryFunction("thunder_core.tracing.library.objects", "same_values")
NUMBERS = (float, int)  # classes of numbers that may vary between calls
BASES_WITH_VALUES = (int, float, complex, str, bytes)  # classes whose subclasses inherit a value
EXACTLY_EQUAL_CLASSES = (bool, int, str, bytes, type(None))  # values of one class that are equal are the same
DEVICES: dict[torch.device, torch.device] = {}  # one object for each device, so that a prologue has one name for it


@dataclass
class GuardScope(Scope):
    """The scope of a prologue. `variables` maps the paths that the prologue has read to their expressions."""

    variables: Mapping[Path, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Guard:
    """A condition on the value at a path.

    Two guards with equal keys have the same requirement: only the first guard is added.
    """

    path: Path

    @property
    def key(self) -> tuple[Any, ...]:
        """The class and the path of the guard, and another field if a path may have several guards of this class."""
        return (type(self), self.path)

    @property
    def subject(self) -> Path:
        """The path to the object that the condition checks, such as the `__dict__` of the object at `path`."""
        return self.path

    @property
    def other_paths(self) -> tuple[Path, ...]:
        """The other paths in the condition, which the prologue reads first."""
        return ()

    def condition(self, subject: str, scope: GuardScope) -> str:
        """Return the condition as Python source; `subject` is the expression of the subject."""
        raise NotImplementedError

    @property
    def words(self) -> str:
        """The value or fact that tracing found at the path, in words."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.path}: {self.words}"


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
        return f"was a {self.kind.__name__}"


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
        equal = self._equality(subject, scope)
        if not is_literal(self.values):
            return equal
        name = self.path.key.strip("_") if isinstance(self.path.key, str) else "values"
        return f"{subject} is {scope.constant(self.values, f'traced_{name}')} or {equal}"

    def _equality(self, subject: str, scope: GuardScope) -> str:
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


@dataclass(frozen=True, eq=False)
class OfTwoPaths(Guard):
    """Requires a relation between the values at `path` and `second_path`."""

    second_path: Path

    @property
    def key(self) -> tuple[Any, ...]:
        return (type(self), self.path, self.second_path)

    @property
    def other_paths(self) -> tuple[Path, ...]:
        return (self.second_path,)


@dataclass(frozen=True, eq=False)
class SameAs(OfTwoPaths):
    """Requires the same object at both paths."""

    @property
    def key(self) -> tuple[Any, ...]:
        return (SameAs, self.path)

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{subject} is {scope.variables[self.second_path]}"

    @property
    def words(self) -> str:
        return f"was the same object as {self.second_path}"


@dataclass(frozen=True, eq=False)
class Apart(OfTwoPaths):
    """Requires different objects at the two paths."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{subject} is not {scope.variables[self.second_path]}"

    @property
    def words(self) -> str:
        return f"was a different object from {self.second_path}"


@dataclass(frozen=True, eq=False)
class AllApart(Guard):
    """Requires different objects at all of these paths: objects of one class that C code compares by identity."""

    rest: tuple[Path, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        return (AllApart, self.path)

    @property
    def other_paths(self) -> tuple[Path, ...]:
        return self.rest

    def condition(self, subject: str, scope: GuardScope) -> str:
        variables = (subject, *(scope.variables[path] for path in self.rest))
        if len(variables) == 2:
            return " is not ".join(variables)
        return f"len({{{', '.join(f'id({name})' for name in variables)}}}) == {len(variables)}"

    @property
    def words(self) -> str:
        return f"was a different object from {', '.join(map(str, self.rest))}"


@dataclass(frozen=True, eq=False)
class LacksKey(OfTwoPaths):
    """Requires a mapping without the key at `second_path`."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{scope.variables[self.second_path]} not in {subject}"

    @property
    def words(self) -> str:
        return f"had no item for {self.second_path}"


@with_quick_init
@dataclass(frozen=True, eq=False)
class TensorMetadata(Guard):
    """Requires a tensor of this class, with the proxy's metadata and this layout."""

    kind: type
    proxy: TensorProxy
    layout: torch.layout

    def condition(self, subject: str, scope: GuardScope) -> str:
        proxy, is_dense = self.proxy, self.layout is torch.strided
        parts = [
            exact_type_condition(subject, self.kind, scope),
            f"{subject}.dtype is {literal(proxy.dtype, scope)}",
            f"{subject}.shape == {literal(sizes_before_counts(proxy.shape), scope)}",
            f"{subject}.stride() == {literal(sizes_before_counts(proxy.stride), scope)}"
            if is_dense
            else f"{subject}.layout is {self.layout}",
            f"{subject}.device == {scope.constant(DEVICES.setdefault(proxy.device, proxy.device), 'device')}",
            f"{subject}.requires_grad is {proxy.requires_grad}",
            *([f"{subject}.is_conj() is {proxy.is_conj}"] if proxy.dtype.is_complex else []),
            f"{subject}.is_neg() is {proxy.is_neg}",
        ]
        return " and ".join(parts)

    @property
    def words(self) -> str:
        return f"was {self.proxy.described}"


@dataclass(frozen=True, eq=False)
class SparseTensorMetadata(TensorMetadata):
    """Requires a tensor of a layout without strides, such as a sparse tensor."""

    @property
    def words(self) -> str:
        return f"was {self.proxy.described} in layout {self.layout}"


def exact_type_condition(subject: str, kind: type, scope: Scope) -> str:
    """Return the condition that a subject is of exactly this class."""
    return f"type({subject}) is {bind_constant(kind, scope)}"


def constant_guard(path: Path, value: object) -> OfConstant:
    """Return the guard on a constant: by identity for a singleton or an enumeration member, otherwise by equality."""
    by_identity = type(value) in SINGLETONS or isinstance(value, enum.Enum)
    return Is(path, value) if by_identity else Equal(path, value)
