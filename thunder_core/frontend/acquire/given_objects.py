"""Snapshots of objects that a program creates and passes to a function, which may keep them for its backward.

The program may change such an object later, and the object refers to tensors of the traced call. So two arguments of
the bound symbol replace the object: a copy of the object from the time of the call, with holes in place of tensors and
numbers; and these tensors and numbers.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import torch

from thunder_core.foundation.descriptions import object_of_class
from thunder_core.frontend.acquire.codegen.rebuilding import is_rebuildable
from thunder_core.frontend.acquire.held_objects import refers_to_tensors
from thunder_core.frontend.acquire.outside.guards.values import Identical
from thunder_core.frontend.acquire.outside.outside import Outside
from thunder_core.frontend.acquire.outside.reductions import is_bound_in_c
from thunder_core.passes.autodiff.applied.object_copies import COPY, Copies, Hole, Snapshot
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.ir.constants import BY_IDENTITY, is_constant
from thunder_core.tracing.ir.tree import replace_leaves

# Objects of these types are copied because they may refer to objects that change.
SHALLOWLY_IMMUTABLE = (types.FunctionType, types.MethodType, functools.partial, tuple, frozenset, slice)


class ObjectSnapshot:
    """A snapshot of nested objects with holes; `values` are the program's tensors and numbers that fill the holes.

    The containers in `always_copied` are copied even if they are outside objects. `refuse(reason)` raises the error for
    an object that cannot be copied.
    """

    def __init__(self, outside: Outside, always_copied: Iterable[Any], refuse: Callable[[str], NoReturn]) -> None:
        self._outside = outside
        self._always_copied = set(map(id, always_copied))
        self._refuse = refuse
        self._from_outside: list[Any] = []
        self._holes: dict[int, Hole] = {}
        self._copies = Copies(self._copy_or_hole)
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
            if not isinstance(copy, Hole) and id(value) not in self._always_copied
        ]

    def require_same(self, is_exempt: Callable[[Any], bool]) -> None:
        """Guard the identity of each outside object in the snapshot, except objects for which `is_exempt` is true."""
        for value in self._from_outside:
            path = self._outside.path_of(value)
            if path is not None and not is_exempt(value):
                self._outside.guard(Identical(path, value))

    def _copy_or_hole(self, value: object) -> Any:
        """Return `COPY` for an object to copy, a hole for a tensor or number, or the object itself to keep it."""
        if id(value) in self._always_copied:
            return COPY
        if isinstance(value, torch.Tensor | SymbolicNumber):
            return self._hole_for(value)
        if is_constant(value) or type(value) is object:
            return value
        if self._outside.path_of(value) is not None:
            self._from_outside.append(value)
            return value
        return COPY if self._must_copy(value) else value

    def _hole_for(self, value: object) -> Hole:
        if id(value) not in self._holes:
            self._holes[id(value)] = Hole(len(self.values))
            self.values.append(value)
        return self._holes[id(value)]

    def _must_copy(self, value: object) -> bool:
        """Whether an object of the program may change later, or refers to objects that may change.

        Raises the error of `refuse` for an object that refers to tensors and that cannot be copied.
        """
        if isinstance(value, types.FunctionType):
            return bool(value.__closure__ or value.__defaults__ or value.__kwdefaults__ or vars(value))
        if is_bound_in_c(value) or isinstance(value, (types.CellType, types.SimpleNamespace, *SHALLOWLY_IMMUTABLE)):
            return True
        if not isinstance(value, BY_IDENTITY) and is_rebuildable(type(value)):
            return True
        if not isinstance(value, BY_IDENTITY) and refers_to_tensors(value):
            self._refuse(f"gets {object_of_class(type(value))} that contains a tensor of the program")
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

    def for_bound_symbol(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments of the bound symbol."""
        if self._snapshot is None:
            return self.args, self.kwargs
        return (self._snapshot, tuple(self._objects.values)), {}

    def with_changes(self, change: Callable[[Any], Any]) -> tuple[Any, list[tuple[Any, Any]]]:
        """Return the arguments with changed tensors and numbers, and pairs of objects.

        A pair is an object that the program created, or a list or dict of the arguments, with the object in the same
        position of the changed arguments.
        """
        call = (self.args, self.kwargs)
        if self._snapshot is None:
            arguments = replace_leaves(call, change)
            return arguments, _pairs_of_containers(call, arguments)
        arguments, copies = self._snapshot.fill([change(value) for value in self._objects.values])
        filled = {id(copy): changed for copy, changed in copies.pairs}
        pairs = [(value, filled[id(copy)]) for value, copy in self._objects.pairs if id(copy) in filled]
        return arguments, [*pairs, *_pairs_of_containers(call, arguments)]

    def require_same_objects(self) -> None:
        """Guard the identity of each outside object that refers to tensors."""
        self._objects.require_same(lambda value: not refers_to_tensors(value))


def _containers_in(tree: Any) -> Iterator[Any]:
    """Yield the tuples, lists and dicts that are nested in the arguments, outermost first."""
    if type(tree) in (tuple, list, dict):
        yield tree
        for item in tree.values() if type(tree) is dict else tree:
            yield from _containers_in(item)


def _pairs_of_containers(original: object, changed: object) -> list[tuple[Any, Any]]:
    """Return the lists and dicts of the arguments, each with the container in the same position of `changed`."""
    pairs = zip(_containers_in(original), _containers_in(changed), strict=True)
    return [(value, copy) for value, copy in pairs if type(value) is not tuple]
