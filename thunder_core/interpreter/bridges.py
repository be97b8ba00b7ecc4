"""What C code is given in place of the program's callables and iterables, so that it calls back into the machine."""

import functools
import operator
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

from thunder_core.interpreter import operators
from thunder_core.interpreter.lookup import python_method
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
            return self._machine.invoke(self._function, arguments, keywords)
        except BaseException as error:
            error.__traceback__ = without_own_entries(error.__traceback__)
            raise

    def __reduce__(self) -> Any:
        return itself, (self._function,)


def itself(function: Any) -> Any:
    """What a pickled callback becomes."""
    return function


def callback(machine: "Machine", function: Any) -> Any:
    """A native callable that calls `function` on the machine; what is no Python code stays itself."""
    kind = type(function)
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
            return operators.next_of(self._machine, self._iterator)
        except BaseException as error:
            error.__traceback__ = without_own_entries(error.__traceback__)
            raise

    def __length_hint__(self) -> int:
        return self._hint()


def iterable(machine: "Machine", value: Any) -> Any:
    """Something whose native iteration interprets Python-level `__iter__` and `__next__`."""
    kind = type(value)
    if python_method(kind, "__iter__") is None:
        return value
    iterator = operators.iterate(machine, value)
    if python_method(type(iterator), "__next__") is None:
        return iterator if iterator is not value else value
    return BridgedIterator(machine, iterator, lambda: operator.length_hint(value, 0))
