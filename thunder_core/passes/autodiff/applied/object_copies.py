"""Copies of the objects that are arguments of a call, with the tensors and the numbers of that call.

A trace has names only for tensors and numbers in plain containers. A bound symbol whose argument is another object
therefore takes a snapshot of its arguments, made while tracing, and the tensors and numbers in the snapshot. At each
call, the bound symbol copies the snapshot.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.tracing.ir.stored_attributes import attributes_of, pairs_of
from thunder_core.tracing.ir.tree import PlaceholderSize, like, of_class
from thunder_core.tracing.library.objects import fill, new

COPY = object()  # the function `decide` of `Copies` returns this marker for a value that must be copied


@dataclass(frozen=True, eq=False)
class Hole:
    """A placeholder in a snapshot for a tensor or number. `number` is the index of this value among a call's values."""

    number: int


@dataclass(frozen=True, eq=False)
class MethodOfHole:
    """A placeholder in a snapshot for a bound C method of a tensor."""

    owner: Hole
    name: str

    def __call__(self, *_args: Any, **_kwargs: Any) -> Any:
        """Make the placeholder callable, as `functools.partial` requires; it is never called."""
        raise AssertionError("a snapshot is copied before it is used")


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The arguments of a call at tracing, with a hole for each tensor and each number that varies.

    `copied` has the identities (`id`) of the objects that are copied at each call. All other objects are not copied.
    """

    arguments: Any
    copied: frozenset[int]

    def fill(self, values: Sequence[Any]) -> tuple[Any, Copies]:
        """Return the arguments with these values in place of the holes, and the `Copies` that were made for this."""

        def decide(value: Any) -> Any:
            if isinstance(value, Hole):
                return values[value.number]
            return COPY if id(value) in self.copied else value

        copies = Copies(decide)
        return copies.of(self.arguments), copies


class Copies:
    """Copies of objects and of the objects that they refer to. Each object is copied only once.

    `decide(value)` returns the object that replaces a value, or `COPY` if the value must be copied.
    """

    def __init__(self, decide: Callable[[Any], Any]) -> None:
        self._decide = decide
        # The values are stored too: while they are alive, no other object can have their identity.
        self._replacements: dict[int, tuple[Any, Any]] = {}

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        """The objects that were copied, as pairs of the object and its copy."""
        return [(value, copy) for value, copy in self._replacements.values() if copy is not value]

    def of(self, value: Any) -> Any:
        """Return the copy of a value, or its replacement."""
        if id(value) not in self._replacements:
            decision = self._decide(value)
            self._note_copy(value, self._copy(value) if decision is COPY else decision)
        return self._replacements[id(value)][1]

    def _note_copy(self, value: object, copy: object) -> Any:
        return self._replacements.setdefault(id(value), (value, copy))[1]

    def _copy(self, value: object) -> Any:
        kind = type(value)
        for base, copy in COPIERS.items():
            if issubclass(kind, base):
                return copy(self, value)
        return self._instance(value)

    def _tuple(self, value: tuple[Any, ...]) -> Any:
        items = [self.of(item) for item in tuple.__iter__(value)]
        if isinstance(value, torch.Size | PlaceholderSize):
            return like(value, items)
        return of_class(type(value), items, self._state(value))

    def _frozenset(self, value: frozenset[Any]) -> Any:
        return frozenset.__new__(type(value), map(self.of, frozenset.__iter__(value)))

    def _slice(self, value: slice) -> slice:
        return slice(self.of(value.start), self.of(value.stop), self.of(value.step))

    def _partial(self, value: functools.partial[Any]) -> Any:
        base: Any = functools.partial
        function, args, keywords = (base.__dict__[name].__get__(value) for name in ("func", "args", "keywords"))
        keywords = {name: self.of(item) for name, item in keywords.items()}
        copy = base.__new__(type(value), self.of(function), *map(self.of, args), **keywords)
        fill(copy, state=self._state(value))
        return copy

    def _method(self, value: types.MethodType) -> types.MethodType:
        return types.MethodType(self.of(value.__func__), self.of(value.__self__))

    def _method_of_c(self, value: types.BuiltinMethodType) -> Any:
        owner = self.of(value.__self__)
        return MethodOfHole(owner, value.__name__) if isinstance(owner, Hole) else getattr(owner, value.__name__)

    def _method_of_hole(self, value: MethodOfHole) -> Any:
        return getattr(self.of(value.owner), value.name)

    def _cell(self, value: types.CellType) -> types.CellType:
        copy: types.CellType = self._note_copy(value, types.CellType())
        if value != types.CellType():
            copy.cell_contents = self.of(value.cell_contents)
        return copy

    def _function(self, value: types.FunctionType) -> types.FunctionType:
        """Copy a function. The copy is stored first, because a cell of the closure may contain the function itself."""
        cells = value.__closure__ and tuple(
            cell if id(cell) in self._replacements else types.CellType() for cell in value.__closure__
        )
        cells = cells and tuple(
            self._note_copy(cell, copy) for cell, copy in zip(value.__closure__ or (), cells, strict=True)
        )
        copy = types.FunctionType(value.__code__, value.__globals__, value.__name__, None, cells)
        self._note_copy(value, copy)
        for cell, its_copy in zip(value.__closure__ or (), cells or (), strict=True):
            if cell != types.CellType() and its_copy == types.CellType():
                its_copy.cell_contents = self.of(cell.cell_contents)
        copy.__defaults__, copy.__kwdefaults__ = self.of(value.__defaults__), self._copy_named(value.__kwdefaults__)
        functools.update_wrapper(copy, value, updated=())
        vars(copy).pop("__wrapped__", None)
        vars(copy).update(self._copy_named(vars(value)) or {})
        return copy

    def _copy_named(self, items: Mapping[str, Any] | None) -> dict[str, Any] | None:
        return items and {name: self.of(item) for name, item in items.items()}  # type: ignore[return-value]

    def _instance(self, value: Any) -> Any:
        kind = type(value)
        copy = self._note_copy(value, new(kind))
        if issubclass(kind, dict):
            items: Any = {self.of(key): self.of(item) for key, item in pairs_of(value)}
        else:
            base: Any = next((base for base in (list, set, deque) if issubclass(kind, base)), None)
            items = [] if base is None else [self.of(item) for item in base.__iter__(value)]
        fill(copy, items=items, state=self._state(value))
        return copy

    def _state(self, value: object) -> dict[str, Any]:
        return {name: self.of(item) for name, item in attributes_of(value).items()}


COPIERS: dict[type, Callable[[Copies, Any], Any]] = {
    tuple: Copies._tuple,
    frozenset: Copies._frozenset,
    slice: Copies._slice,
    functools.partial: Copies._partial,
    types.MethodType: Copies._method,
    types.BuiltinMethodType: Copies._method_of_c,
    types.MethodWrapperType: Copies._method_of_c,
    MethodOfHole: Copies._method_of_hole,
    types.CellType: Copies._cell,
    types.FunctionType: Copies._function,
}
