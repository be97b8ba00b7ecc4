"""Bridges: replacements for the program's callables and iterables, through which C code calls the machine."""

import functools
import operator
from collections.abc import Callable
from types import FunctionType, GeneratorType, MethodType
from typing import Any

from thunder_core.frontend.interpreter import operators
from thunder_core.frontend.interpreter.frame import Machine
from thunder_core.frontend.interpreter.iterators import STEPPED_ITERATORS, may_call_or_forward, unknown_items
from thunder_core.frontend.interpreter.lookup import python_method, type_lookup
from thunder_core.frontend.interpreter.native import unwrap
from thunder_core.frontend.interpreter.operators import PRIMITIVE_TYPES
from thunder_core.frontend.interpreter.reach import REFERENTS
from thunder_core.frontend.interpreter.tracebacks import without_own_entries
from thunder_core.tracing.library.changes.class_entries import ABSENT


class Callback:
    """A native callable that calls a function on the machine. Pickling it pickles the function."""

    __slots__ = ("_function", "_machine")

    def __init__(self, machine: Machine, function: Any) -> None:
        self._machine = machine
        self._function = function

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function on the machine."""
        try:
            return self._machine.call_back(self._function, arguments, keywords)
        except BaseException as error:
            error.__traceback__ = without_own_entries(error.__traceback__)
            raise

    def __reduce__(self) -> Any:
        return unbridge, (self._function,)


def unbridge(value: object) -> Any:
    """Return the value. A bridge is pickled and copied as a call of this function with the bridged object."""
    return value


def callback(machine: Machine, function: object) -> Any:
    """Return a native callable that calls `function` on the machine.

    Without an observer, an object that runs no Python code is returned unchanged.
    """
    kind = type(function)
    if machine.observer is not None and callable(function):
        return Callback(machine, function)
    if kind not in (FunctionType, MethodType, functools.partial) and python_method(kind, "__call__") is None:
        return function
    return Callback(machine, function)


class BridgedIterator:
    """A native iterator that makes each step on the machine, so that `__next__` in Python is interpreted."""

    __slots__ = ("_hint", "_iterator", "_machine", "is_announced")

    def __init__(self, machine: Machine, iterator: Any, hint: Callable[[], int]) -> None:
        self._machine = machine
        self._iterator = iterator
        self._hint = hint
        self.is_announced = False  # whether C code hashes or compares the items, which are then announced

    def __iter__(self) -> "BridgedIterator":
        return self

    def __next__(self) -> Any:
        try:
            value = self._machine.next_for_native(self._iterator)
            if self.is_announced:
                self._machine.announce_hash(value)
            return value
        except BaseException as error:
            error.__traceback__ = without_own_entries(error.__traceback__)
            raise

    def __length_hint__(self) -> int:
        return self._hint()

    def __reduce__(self) -> Any:
        return unbridge, (self._iterator,)


REFERENTS |= {Callback: unknown_items, BridgedIterator: unknown_items}


def iterable(machine: Machine, value: object) -> Any:
    """Return an iterable whose native iteration interprets `__iter__` and `__next__` in Python."""
    value = unwrap(value)
    kind = type(value)
    if python_method(kind, "__iter__") is None:
        if machine.observer is not None and kind not in PRIMITIVE_TYPES:
            return _observable_iterable(machine, value)
        return value
    iterator = operators.iterate(machine, value)
    if python_method(type(iterator), "__next__") is not None or _is_sized_by_python(kind):
        return _bridge(machine, iterator, value)
    return iterator if machine.observer is None else _observable_iterable(machine, iterator)


def _bridge(machine: Machine, iterator: object, value: object) -> BridgedIterator:
    """Return a bridge around an iterator over a value, whose length hint is the length of the value."""
    kind = type(value)
    if kind in STEPPED_ITERATORS or (machine.observer is None and not _is_sized_by_python(kind)):
        return BridgedIterator(machine, iterator, lambda: operator.length_hint(value, 0))
    return BridgedIterator(machine, iterator, lambda: machine.call_back(operator.length_hint, (value, 0), {}))


def _is_sized_by_python(kind: type) -> bool:
    """Whether a Python function returns the number of items of an object."""
    return python_method(kind, "__len__") is not None or python_method(kind, "__length_hint__") is not None


def _observable_iterable(machine: Machine, value: Any) -> Any:
    """Return an iterable for C code: a bridge if a step may run Python code or forward an item, else the value."""
    kind = type(value)
    if kind is GeneratorType or may_call_or_forward(kind):
        return _bridge(machine, value, value)
    if python_method(kind, "__getitem__") is not None and type_lookup(kind, "__iter__") is ABSENT:
        return _bridge(machine, iter(value), value)
    return value


def announcing_iterable(machine: Machine, value: object) -> Any:
    """Return an iterable for C code that hashes or compares the items. A bridge announces each item to the observer."""
    bridged = iterable(machine, value)
    if type(bridged) is BridgedIterator:
        bridged.is_announced = True
    return bridged


def reporting_iterator(machine: Machine, value: object) -> BridgedIterator:
    """Return a bridged iterator over a value, even if its steps run no Python code."""
    iterator = iterable(machine, value)
    return iterator if type(iterator) is BridgedIterator else _bridge(machine, iter(iterator), value)


# C containers, and constructors that copy items without calling methods of the items.
_C_CONTAINERS = frozenset({list, tuple, dict, set, frozenset, range, str, bytes})
_COPYING_CONSTRUCTORS = frozenset({list, tuple})


def gather(machine: Machine, collect: Callable[[Any], Any], value: object) -> Any:
    """Return the result of `collect`, which is `list`, `tuple` or a method of a container, for an unpacked iterable."""
    kind = type(value)
    if kind in _C_CONTAINERS:
        machine.announce_iteration(value)
        if collect in _COPYING_CONSTRUCTORS:
            return collect(value)
    elif python_method(kind, "__iter__") is None and python_method(kind, "__next__") is None:
        machine.announce_iteration(value)
    return machine.call_unreported(collect, (iterable(machine, value),), {})
