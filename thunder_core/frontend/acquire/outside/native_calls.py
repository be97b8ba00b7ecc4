"""The effects of C functions on outside objects: shallow and deep reads, and changes."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from thunder_core.frontend.acquire.outside.call_traits import is_plain_mapping, reads_only_classes
from thunder_core.frontend.acquire.outside.containers import (
    MUTATORS,
    container_base,
    container_type,
    is_changing,
    is_used_up,
    receiver,
)
from thunder_core.frontend.acquire.outside.namespaces import NESTING
from thunder_core.frontend.acquire.outside.native_kinds import NativeState, native_state_of
from thunder_core.frontend.acquire.outside.outside_writes import OutsideWrites
from thunder_core.frontend.acquire.outside.whole_reads import WholeReads
from thunder_core.frontend.interpreter.frame import Machine
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.library.states import has_state

# Methods of containers that read nested containers, and methods of containers that only read a key.
COMPARISONS = tuple(f"__{name}__" for name in ("contains", "eq", "ne", "lt", "le", "gt", "ge"))
COMPARING = ("index", "count", "remove", "sort", *COMPARISONS)
LOOKUPS = ("get", "__getitem__", "__contains__")
DRIVEN = frozenset({types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType})
# Functions that take no item out of an iterator.
TAKING_NOTHING = frozenset(
    map(
        id,
        (
            *(iter, bool, hash, callable, repr, str, operator.is_, operator.is_not, operator.truth, operator.not_),
            *(operator.eq, operator.ne, operator.setitem, operator.getitem),
        ),
    )
)
TAKING_METHODS = frozenset(
    {"__next__", "send", "throw", "close", "__anext__", "asend", "athrow", "aclose", "__setstate__"}
)
OWN_ITERATOR = "take the item outside of the compiled program and pass it as an argument, or iterate over a container"


class NativeCalls:
    """Notes reads and writes of C functions. `leave_to_eager` leaves to eager PyTorch what no trace can represent."""

    def __init__(
        self, outside: WholeReads, writes: OutsideWrites, leave_to_eager: Callable[[str, str], NoReturn]
    ) -> None:
        self._outside = outside
        self._writes = writes
        self._leave_to_eager = leave_to_eager

    def before(self, machine: Machine, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Note the effects of a C function on its arguments. A call that uses up an iterator is made at once."""
        if function is id:
            self._outside.note_identity_read(*args)
            return NOT_TAKEN
        if function is type and len(args) == 1:
            self._outside.class_of(args[0])
        owner, name, rest, level = receiver(function, args)
        if name in TAKING_METHODS:
            self.require_own_iterators(function, (owner,))
        if owner is not None and name in LOOKUPS and rest and not kwargs and is_plain_mapping(owner):
            self._outside.note_lookup(owner, rest[0])
        elif owner is not None and self._outside.path_of(owner) is not None:
            if name in MUTATORS and any(is_used_up(name, arg) for arg in rest):
                return self._take(machine, function, args, kwargs)
            if name in COMPARING:
                self._outside.expand_whole(owner, function)
            elif name not in MUTATORS:
                self._outside.expand(owner)
            self.mutate(owner, name, rest, kwargs, level)
        elif name in COMPARING and issubclass(type(owner), NESTING):
            self._outside.expand_whole(owner, function)
        elif is_changing(function):
            self._writes.call_changing(function, args, kwargs)
        if name in ("setdefault", "__setitem__") and rest:
            self._outside.expand_key(rest[0])
        only_classes = reads_only_classes(function)
        read = [arg for arg in (*rest, *kwargs.values()) if not (only_classes and has_state(arg) and arg is rest[0])]
        self._outside.expand_for(function, read)
        self.require_own_iterators(function, (*rest, *kwargs.values()))
        return NOT_TAKEN

    def require_own_iterators(self, function: object, args: Iterable[Any]) -> None:
        """Leave a function that may take items out of an iterator from outside to eager PyTorch.

        Tracing cannot put the items back.
        """
        for arg in args:
            path = self._outside.path_of(arg)
            if path is None or reads_only_classes(function) or id(function) in TAKING_NOTHING:
                continue
            if type(arg) in DRIVEN or native_state_of(type(arg)) is NativeState.STEPS:
                self._leave_to_eager(f"the program takes an item out of an iterator from outside, {path}", OWN_ITERATOR)

    def _take(self, machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a method of a container with the items of an iterator, which can be iterated only once."""
        lasting = [
            machine.call(container_type(arg), arg) if is_used_up(function.__name__, arg) else arg for arg in args
        ]
        return machine.call(function, *lasting, **kwargs)

    def mutate(
        self, container: object, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], level: type | None = None
    ) -> None:
        """Note a call of a method that may change a container or an object of C."""
        if container_base(container) is None:
            self._outside.guard_state(container)
        elif name in MUTATORS:
            self._writes.call_mutator(container, name, args, kwargs, level)
