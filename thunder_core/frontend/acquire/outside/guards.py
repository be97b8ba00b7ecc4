"""Guards on values, classes, identities and tensors that the program read from outside.

Each kind of guard is a frozen dataclass with a path and the facts that tracing found there. A guard writes its
condition as Python source, and describes its requirement in words.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_core.foundation.quick_objects import with_quick_init
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.tracing.ir.constants import SINGLETONS, bind_constant, is_literal, name_of
from thunder_core.tracing.ir.literal import LibraryFunction, Scope, literal, sizes_before_counts
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.tree import leaves

SAME_VALUES = LibraryFunction("thunder_core.tracing.library.objects", "same_values")
NUMBERS = (float, int)  # classes of numbers that may vary between calls
COMPARED_BY_TYPE = (bool, int, str, bytes, type(None))  # values of one of these classes are the same if they are equal
DEVICES: dict[torch.device, torch.device] = {}  # one object for each device, so that a prologue has one name for it


@dataclass
class GuardScope(Scope):
    """The scope of a prologue. `variables` maps the paths that the prologue has read to their expressions."""

    variables: Mapping[Path, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Guard:
    """A condition on the value at a path.

    Guards with equal keys have the same requirement, and the first guard is kept.
    """

    path: Path

    @property
    def key(self) -> tuple[Any, ...]:
        """The kind and the path of the guard, and a further fact if a path may have several guards of this kind."""
        return (type(self), self.path)

    @property
    def subject(self) -> Path:
        """The path to the object that the condition checks."""
        return self.path

    @property
    def other_paths(self) -> tuple[Path, ...]:
        """Other paths that the condition uses, which the prologue reads first."""
        return ()

    def condition(self, subject: str, scope: GuardScope) -> str:
        """Return the condition as a Python expression of the subject's expression."""
        raise NotImplementedError

    @property
    def words(self) -> str:
        """The value or fact that tracing found at the path, in words."""
        raise NotImplementedError

    def __str__(self) -> str:
        return f"{self.path}: {self.words}"


@dataclass(frozen=True, eq=False)
class OfConstant(Guard):
    """Requires a constant. A path has one such guard, by identity or by equality."""

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
    """Requires an equal value of the same type: 1, 1.0 and True differ, and so do 0.0 and -0.0; NaN equals NaN."""

    def condition(self, subject: str, scope: GuardScope) -> str:
        if isinstance(self.value, float) and (self.value == 0.0 or math.isnan(self.value)):
            return f"type({subject}) is float and str({subject}) == {str(self.value)!r}"
        if isinstance(self.value, complex | slice):
            return f"{scope.function(SAME_VALUES)}({subject}, {literal(self.value, scope)})"
        same = f"{subject} == {literal(self.value, scope)}"
        return (
            same
            if isinstance(self.value, str)
            else f"{same} and {exact_type_condition(subject, type(self.value), scope)}"
        )

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
    """Requires a member of an enumeration of pybind11, or a `ReduceOp`, which is compared by its class and its hash."""

    value: Any

    def condition(self, subject: str, scope: GuardScope) -> str:
        return f"{exact_type_condition(subject, type(self.value), scope)} and hash({subject}) == {hash(self.value)}"

    @property
    def words(self) -> str:
        return f"was {self.value}"


@dataclass(frozen=True, eq=False)
class Values(Guard):
    """Requires a tuple of equal constants of the same types, compared as by `Equal`, also within inner tuples.

    The traced tuple passes by its identity, which is cheap because no item is read.
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
        if all(type(value) in COMPARED_BY_TYPE for value in self.values):
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
    """Requires a relation between the value at the path and the value at the `second_path` path."""

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
    """Requires a mapping without the key at the other path."""

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
    """Requires a tensor without strides that an operation has used."""

    @property
    def words(self) -> str:
        return f"was {self.proxy.described} in layout {self.layout}"


def exact_type_condition(subject: str, kind: type, scope: Scope) -> str:
    """Return the condition that a subject is of exactly this class."""
    return f"type({subject}) is {bind_constant(kind, scope)}"


def constant_guard(path: Path, value: object) -> OfConstant:
    """Return the cheapest sound guard on a constant."""
    by_identity = type(value) in SINGLETONS or isinstance(value, enum.Enum)
    return Is(path, value) if by_identity else Equal(path, value)
