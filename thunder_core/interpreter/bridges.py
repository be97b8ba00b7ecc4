"""What C code is given in place of the program's callables and iterables, so that it calls back into the machine."""

import functools
import operator
from collections.abc import Callable
from types import FunctionType, GeneratorType, MethodType
from typing import TYPE_CHECKING, Any

from thunder_core.interpreter import operators
from thunder_core.interpreter.lookup import ABSENT, python_method, type_lookup
from thunder_core.interpreter.operators import PLAIN
from thunder_core.interpreter.reach import HANDING_ON, PARTS, later
from thunder_core.interpreter.tracebacks import without_own_entries

if TYPE_CHECKING:
    from thunder_core.interpreter.machine import Machine


class Callback:
    """A native callable that calls a function on the machine; pickled, it is the function."""

    __slots__ = ("_function", "_machine")

    def __init__(self, machine: "Machine", function: Any) -> None:
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
        return itself, (self._function,)


def itself(function: Any) -> Any:
    """What a pickled callback becomes."""
    return function


def callback(machine: "Machine", function: Any) -> Any:
    """A native callable that calls `function` on the machine; what is no Python code stays itself, if none listens."""
    kind = type(function)
    if machine.observer is not None and callable(function):
        return Callback(machine, function)
    if kind not in (FunctionType, MethodType, functools.partial) and python_method(kind, "__call__") is None:
        return function
    return Callback(machine, function)


class BridgedIterator:
    """An iterator whose Python-level steps are interpreted."""

    __slots__ = ("_hint", "_iterator", "_machine")

    def __init__(self, machine: "Machine", iterator: Any, hint: Callable[[], int]) -> None:
        self._machine = machine
        self._iterator = iterator
        self._hint = hint

    def __iter__(self) -> "BridgedIterator":
        return self

    def __next__(self) -> Any:
        try:
            return self._machine.next_for_native(self._iterator)
        except BaseException as error:
            error.__traceback__ = without_own_entries(error.__traceback__)
            raise

    def __length_hint__(self) -> int:
        return self._hint()

    def __reduce__(self) -> Any:
        return itself, (self._iterator,)


PARTS |= {Callback: later, BridgedIterator: later}


def iterable(machine: "Machine", value: Any) -> Any:
    """Something whose native iteration interprets Python-level `__iter__` and `__next__`."""
    kind = type(value)
    if python_method(kind, "__iter__") is None:
        if machine.observer is not None and kind not in PLAIN:
            return _observed(machine, value)
        return value
    iterator = operators.iterate(machine, value)
    if python_method(type(iterator), "__next__") is None:
        return iterator if iterator is not value else value
    return _bridged(machine, iterator, value)


def _bridged(machine: "Machine", iterator: Any, value: Any) -> BridgedIterator:
    """The bridge of an iterator over a value."""
    kind = type(value)
    if python_method(kind, "__len__") is None and python_method(kind, "__length_hint__") is None:
        return BridgedIterator(machine, iterator, lambda: operator.length_hint(value, 0))
    return BridgedIterator(machine, iterator, lambda: machine.call_back(operator.length_hint, (value, 0), {}))


def _observed(machine: "Machine", value: Any) -> Any:
    """The same where the iterator is C's: what it gives to C may be the program's."""
    kind = type(value)
    if kind is GeneratorType or kind in HANDING_ON:
        return _bridged(machine, value, value)
    if python_method(kind, "__getitem__") is not None and type_lookup(kind, "__iter__") is ABSENT:
        return _bridged(machine, iter(value), value)
    return value
