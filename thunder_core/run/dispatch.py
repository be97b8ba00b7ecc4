"""Which program of many takes a call: found by what those that refused it met, and not by asking each in turn."""

from __future__ import annotations

import enum
import types
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch

from thunder_core.ir.known import PLAIN
from thunder_core.ir.objects import Refused, Unexpected
from thunder_core.run.program import Program

Refusal = tuple[Program, Exception]
Feature = tuple[str, Hashable]  # the place where a program refused a call, and what it met there
MOST_FEATURES = 4096  # with more the whole index is dropped: all that is in it are hints
MOST_KEYS = 16  # of a mapping that is told from others by its keys
NO_PROGRAMS: dict[Program, None] = {}  # read only
SIZED: tuple[object, ...] = (list, tuple, dict, set)
VALUES = (type(None), bool, int, str, bytes, torch.dtype, torch.device, torch.layout, torch.Size)
BY_IDENTITY = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, enum.Enum)


class Takers:
    """An index from what programs met where they refused calls to the programs that took such calls.

    It only holds hints: each program that it leads to still checks all of its guards.
    """

    def __init__(self) -> None:
        self._takers: dict[Feature, dict[Program, None]] = {}

    def of(self, feature: Feature) -> dict[Program, None]:
        """The programs that took a call with such a feature, in the order in which they first did."""
        return self._takers.get(feature, NO_PROGRAMS)

    def note(self, program: Program, features: Sequence[Feature]) -> None:
        """Record that a program took a call with these features."""
        for feature in features:
            takers = self._takers.get(feature)
            if takers is None:
                if len(self._takers) >= MOST_FEATURES:
                    self._takers.clear()
                self._takers[feature] = {program: None}
            elif program not in takers:
                takers[program] = None

    def forget(self, program: Program) -> None:
        """Remove a program that is not kept any more."""
        for programs in self._takers.values():
            programs.pop(program, None)


class Route:
    """The way of one call through the programs: those that refused it, and which to ask next."""

    __slots__ = ("_asked", "_likely", "_programs", "_takers", "features", "refusals")

    def __init__(self, programs: Iterable[Program], takers: Takers) -> None:
        self.refusals: list[Refusal] = []
        self.features: list[Feature] = []
        self._programs = programs
        self._takers = takers
        self._likely: dict[Program, None] = NO_PROGRAMS
        self._asked: set[Program] = set()

    def after(self, program: Program, error: Exception) -> Program | None:
        """The program to ask next: one that took calls with all that was met, or the last of it, else any other."""
        asked = self._asked
        asked.add(program)
        self.refusals.append((program, error))
        if isinstance(error, Refused):
            feature = place_of(program, error), key_of(error.found)
            self.features.append(feature)
            takers = self._takers.of(feature)
            common = {one: None for one in takers if one in self._likely} if self._likely else takers
            self._likely = common or takers
            for likely in reversed(self._likely):
                if likely not in asked:
                    return likely
        return next((one for one in self._programs if one not in asked), None)

    def in_order(self) -> list[Refusal]:
        """The refusals in the order of the programs."""
        places = {program: place for place, program in enumerate(self._programs)}
        return sorted(self.refusals, key=lambda refusal: places.get(refusal[0], len(places)))


def place_of(program: Program, error: Refused) -> str:
    """The guard, or the line of the trace, at which a program refused a call, without its values."""
    if isinstance(error, Unexpected):
        return f"line {program.line_of(error)}"
    places = program.guarded
    return places[error.number] if error.number < len(places) else ""


def key_of(value: Any) -> Hashable:
    """A key that tells a value from most others (value, metadata or length), made without code of the user's."""
    kind = type(value)
    if is_one_of(kind, VALUES):
        return kind, value
    if kind is float or kind is complex:
        return kind, repr(value)
    if is_one_of(kind, PLAIN) and value.layout is torch.strided and not value.is_nested:
        return kind, value.dtype, value.shape, value.stride(), value.device, value.requires_grad
    if issubclass(kind, BY_IDENTITY):
        return id(kind), id(value)
    if kind is dict and len(value) <= MOST_KEYS and all(type(key) is str for key in value):
        return kind, tuple(value)
    return id(kind), len(value) if is_one_of(kind, SIZED) else 0


def is_one_of(kind: type, kinds: Iterable[object]) -> bool:
    """Whether a class is among others; `in` would ask its metaclass, which may be the user's."""
    return any(kind is other for other in kinds)
