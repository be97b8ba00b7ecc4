"""Calls of C functions: guards on the contents of outside objects that they read, and effects for their writes."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import torch

from thunder_core.frontend.acquire.outside.call_traits import is_plain_mapping, reads_only_classes
from thunder_core.frontend.acquire.outside.containers import (
    MUTATING_METHODS,
    UNBOUND_METHOD_CLASSES,
    can_change_first_argument,
    container_base,
    container_type,
    is_consumed,
    size_of_list_or_set,
    split_method_call,
)
from thunder_core.frontend.acquire.outside.namespaces import NESTING
from thunder_core.frontend.acquire.outside.native_kinds import NativeState, native_state_of
from thunder_core.frontend.acquire.outside.outside_writes import OutsideWrites
from thunder_core.frontend.acquire.outside.whole_reads import TENSOR_CLASSES, WholeReads
from thunder_core.frontend.interpreter.frame import Machine
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.library.states import has_state

# Methods that compare the items of a container, and so read nested containers.
COMPARISONS = tuple(f"__{name}__" for name in ("contains", "eq", "ne", "lt", "le", "gt", "ge"))
COMPARING_METHODS = ("index", "count", "remove", "sort", *COMPARISONS)
LOOKUP_METHODS = ("get", "__getitem__", "__contains__")
GENERATOR_TYPES = frozenset({types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType})
# The identities of functions that accept an iterator and take no item from it.
FUNCTIONS_WITHOUT_ITERATION = frozenset(
    map(
        id,
        (
            *(iter, bool, hash, callable, repr, str, operator.is_, operator.is_not, operator.truth, operator.not_),
            *(operator.eq, operator.ne, operator.setitem, operator.getitem),
        ),
    )
)
METHODS_OF_ITERATORS = frozenset(
    {"__next__", "send", "throw", "close", "__anext__", "asend", "athrow", "aclose", "__setstate__"}
)
# Methods of native objects that `state_restorer` cannot undo.
IRREVERSIBLE_METHODS = frozenset({"close", "__exit__", "detach", "release", "resize", "setflags"})
FIX_FOR_IRREVERSIBLE_METHODS = "call it outside the compiled program"
# C methods that change the state of an object in C, which tracing does not restore.
METHODS_CHANGING_STATE = frozenset({"__init__", "__setstate__", "__missing__", "add_note", "with_traceback"})
NOT_CHANGED = (type, types.ModuleType, types.MethodType, torch.Tensor)  # classes whose `__init__` changes nothing here
FIX_FOR_ITERATORS = (
    "take the item outside of the compiled program and pass it as an argument, or iterate over a container"
)
FIX_FOR_SETS = "use a list or a dict, or remove a member that the program chooses"


class NativeCalls:
    """Guards the reads and logs the writes of C functions.

    `leave_to_eager(action, fix)` raises the request that eager PyTorch makes a call that no trace can represent.
    """

    def __init__(
        self, outside: WholeReads, writes: OutsideWrites, leave_to_eager: Callable[[str, str], NoReturn]
    ) -> None:
        self._outside = outside
        self._writes = writes
        self._leave_to_eager = leave_to_eager

    def before_call(self, machine: Machine, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Guard the reads and log the writes of a C function that is about to be called.

        Return the result if the call is made here, because a method of an outside container consumes an iterator;
        otherwise return `NOT_TAKEN`. Raises the request of `leave_to_eager` for an outside iterator.
        """
        if function is id:
            self._outside.note_identity_read(*args)
            return NOT_TAKEN
        if function is type and len(args) == 1:
            self._outside.note_class_read(args[0])
        owner, name, rest, c_class = split_method_call(function, args)
        values = (*rest, *kwargs.values()) if kwargs else rest
        only_classes = reads_only_classes(function)
        if name in METHODS_CHANGING_STATE:
            self._require_no_outside_state(function, owner, args)
        if not only_classes:
            self._outside.guard_compared_keys(owner, *values)
        if name in METHODS_OF_ITERATORS:
            self.require_no_outside_iterator(function, (owner,))
        if owner is not None and name in LOOKUP_METHODS and rest and not kwargs and is_plain_mapping(owner):
            self._outside.note_lookup(owner, rest[0])
        elif owner is not None and self._outside.path_of(owner) is not None:
            if name in MUTATING_METHODS and any(is_consumed(name, arg) for arg in rest):
                return self._call_with_collected_items(machine, function, args, kwargs)
            if name == "pop" and container_base(owner) is set and (size_of_list_or_set(owner) or 0) > 1:
                path = self._outside.path_of(owner)
                self._leave_to_eager(
                    f"the program pops an arbitrary member of a set from outside, {path}", FIX_FOR_SETS
                )
            if name in IRREVERSIBLE_METHODS and has_state(owner):
                path = self._outside.path_of(owner)
                self._leave_to_eager(f"the program calls {name} of {path}", FIX_FOR_IRREVERSIBLE_METHODS)
            if name in COMPARING_METHODS:
                self._outside.expand_whole(owner, function)
            elif name not in MUTATING_METHODS:
                self._outside.expand(owner)
            self.note_mutation(owner, name, rest, kwargs, c_class)
        elif name in COMPARING_METHODS and issubclass(type(owner), NESTING):
            self._outside.expand_whole(owner, function)
        elif can_change_first_argument(function):
            self._writes.note_function_call(function, args, kwargs)
        if name in ("setdefault", "__setitem__") and rest:
            self._outside.expand_key(rest[0])
        is_class_read = only_classes and rest and has_state(rest[0])
        read = [arg for arg in values if arg is not rest[0]] if is_class_read else values
        self._outside.expand_for(function, read)
        self.require_no_outside_iterator(function, values)
        return NOT_TAKEN

    def _require_no_outside_state(self, function: Any, owner: object, args: tuple[Any, ...]) -> None:
        """Request that eager PyTorch makes the call of a method that changes the state of an outside object.

        An example is `list.__init__`, or `add_note` of an exception.
        """
        changed = args[0] if type(function) in UNBOUND_METHOD_CLASSES and args else owner
        path = self._outside.path_of(changed)
        if path is not None and function is not object.__init__ and not issubclass(type(changed), NOT_CHANGED):
            self._leave_to_eager(f"the program calls {function.__name__} of {path}", FIX_FOR_IRREVERSIBLE_METHODS)

    def require_no_outside_iterator(self, function: object, args: Iterable[Any]) -> None:
        """Request that eager PyTorch makes the call of a function that may take items from an outside iterator.

        Tracing could not put the items back.
        """
        paths = self._outside.paths
        for arg in args:
            path = paths.get(id(arg))
            if path is None or type(arg) in TENSOR_CLASSES:
                continue
            if reads_only_classes(function) or id(function) in FUNCTIONS_WITHOUT_ITERATION:
                continue
            if type(arg) in GENERATOR_TYPES or native_state_of(type(arg)) is NativeState.STEPS:
                self._leave_to_eager(
                    f"the program takes an item out of an iterator from outside, {path}", FIX_FOR_ITERATORS
                )

    def _call_with_collected_items(
        self, machine: Machine, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call a method of a container with lists or dicts of the items in place of iterators and views."""
        collected = [
            machine.call(container_type(arg), arg) if is_consumed(function.__name__, arg) else arg for arg in args
        ]
        return machine.call(function, *collected, **kwargs)

    def note_mutation(
        self, container: object, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], c_class: type | None = None
    ) -> None:
        """Log a call of a method that changes an outside container. Guard the state of another native object."""
        if container_base(container) is None:
            self._outside.guard_state(container)
        elif name in MUTATING_METHODS:
            self._writes.note_method_call(container, name, args, kwargs, c_class)
