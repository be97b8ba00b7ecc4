"""Objects that a program creates and passes to a bound symbol, as arguments or for a backward.

A trace holds an object as it is after the program, with the tensors of the traced call. So the bound symbol takes a
snapshot of such objects, and the tensors and numbers in them.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import torch

from thunder_core.frontend.acquire.held_objects import refers_to_tensors
from thunder_core.frontend.acquire.outside.guards import Identical
from thunder_core.frontend.acquire.outside.outside import Outside
from thunder_core.frontend.acquire.outside.reductions import is_bound_in_c
from thunder_core.frontend.acquire.written.rebuilding import is_rebuildable
from thunder_core.passes.autodiff.applied.object_copies import COPY, Copies, Hole, Snapshot
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.ir.constants import BY_IDENTITY, is_constant
from thunder_core.tracing.ir.tree import replace_leaves

IMMUTABLE = (types.FunctionType, types.MethodType, functools.partial, tuple, frozenset, slice)  # but not what they hold


class ObjectSnapshot:
    """A snapshot of nested objects with holes; `values` are the program's tensors and numbers that fill the holes.

    The containers in `entered` are new at each call, also if they are from outside. `refuse(reason)` raises for an
    object that cannot be copied.
    """

    def __init__(self, outside: Outside, entered: Iterable[Any], refuse: Callable[[str], NoReturn]) -> None:
        self._outside = outside
        self._entered = set(map(id, entered))
        self._refuse = refuse
        self._from_outside: list[Any] = []
        self._holes: dict[int, Hole] = {}
        self._copies = Copies(self._decide)
        self.values: list[Any] = []

    def of(self, tree: Any) -> Snapshot:
        """Return the snapshot of a tree."""
        arguments = self._copies.of(tree)
        return Snapshot(arguments, frozenset(id(copy) for _, copy in self._copies.pairs if not isinstance(copy, Hole)))

    @property
    def pairs(self) -> list[tuple[Any, Any]]:
        """The objects of the program that were copied, each with its copy in the snapshot."""
        return [
            (value, copy)
            for value, copy in self._copies.pairs
            if not isinstance(copy, Hole) and id(value) not in self._entered
        ]

    def require_same(self, is_constant_there: Callable[[Any], bool]) -> None:
        """Guard that each object from outside is the same at each call, unless it is a constant there."""
        for value in self._from_outside:
            path = self._outside.path_of(value)
            if path is not None and not is_constant_there(value):
                self._outside.guard(Identical(path, value))

    def _decide(self, value: Any) -> Any:
        if id(value) in self._entered:
            return COPY
        if isinstance(value, torch.Tensor | SymbolicNumber):
            return self._hole(value)
        if is_constant(value) or type(value) is object:
            return value
        if self._outside.path_of(value) is not None:
            self._from_outside.append(value)
            return value
        return COPY if self._is_copied(value) else value

    def _hole(self, value: Any) -> Hole:
        if id(value) not in self._holes:
            self._holes[id(value)] = Hole(len(self.values))
            self.values.append(value)
        return self._holes[id(value)]

    def _is_copied(self, value: Any) -> bool:
        """Whether an object of the program may change later, or refers to objects that may change."""
        if isinstance(value, types.FunctionType):
            return bool(value.__closure__ or value.__defaults__ or value.__kwdefaults__ or vars(value))
        if is_bound_in_c(value) or isinstance(value, (types.CellType, types.SimpleNamespace, *IMMUTABLE)):
            return True
        if not isinstance(value, BY_IDENTITY) and is_rebuildable(type(value)):
            return True
        if not isinstance(value, BY_IDENTITY) and refers_to_tensors(value):
            self._refuse(f"gets a {type(value).__name__} that contains a tensor of the program")
        return False


class GivenObjects:
    """The positional and named arguments of one call, with a snapshot if the program creates objects among them."""

    def __init__(
        self, outside: Outside, args: tuple[Any, ...], kwargs: dict[str, Any], refuse: Callable[[str], NoReturn]
    ) -> None:
        self.args, self.kwargs = args, kwargs
        arguments = (args, kwargs)
        self._objects = ObjectSnapshot(outside, _containers_in(arguments), refuse)
        snapshot = self._objects.of(arguments)
        self._snapshot = snapshot if self._objects.pairs else None

    def for_operation(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the bound symbol."""
        if self._snapshot is None:
            return self.args, self.kwargs
        return (self._snapshot, tuple(self._objects.values)), {}

    def with_changes(self, change: Callable[[Any], Any]) -> tuple[Any, list[tuple[Any, Any]]]:
        """Return the arguments with changed tensors and numbers, and each created object with its copy in them."""
        call = (self.args, self.kwargs)
        if self._snapshot is None:
            arguments = replace_leaves(call, change)
            return arguments, _lists_of(call, arguments)
        arguments, copies = self._snapshot.fill([change(value) for value in self._objects.values])
        copy_of = {id(stand_in): copy for stand_in, copy in copies.pairs}
        pairs = [(value, copy_of[id(stand_in)]) for value, stand_in in self._objects.pairs if id(stand_in) in copy_of]
        return arguments, [*pairs, *_lists_of(call, arguments)]

    def require_same_objects(self) -> None:
        """Guard that each object from outside is the same at each call, if it refers to tensors."""
        self._objects.require_same(lambda value: not refers_to_tensors(value))


def _containers_in(tree: Any) -> Iterator[Any]:
    """Yield the containers of arguments whose tensors and numbers are leaves of the arguments."""
    if type(tree) in (tuple, list, dict):
        yield tree
        for item in tree.values() if type(tree) is dict else tree:
            yield from _containers_in(item)


def _lists_of(original: Any, changed: Any) -> list[tuple[Any, Any]]:
    """Return the lists and dicts of the arguments, each with its counterpart in the changed arguments."""
    pairs = zip(_containers_in(original), _containers_in(changed), strict=True)
    return [(value, copy) for value, copy in pairs if type(value) is not tuple]
