"""Redirection of calls from C code: the machine interprets the Python functions that C code calls.

While the C code runs, the code objects of these functions are replaced by code that calls the machine.
"""

import weakref
from collections.abc import Sequence
from threading import get_ident
from types import CodeType, FunctionType
from typing import Any, Protocol

from thunder_core.frontend.interpreter.observer import Observer
from thunder_core.frontend.interpreter.reach import Functions
from thunder_core.frontend.interpreter.tracebacks import without_own_entries


class RedirectionTarget(Protocol):
    """The machine that calls from C code are redirected to (`interpreter.observed.ObservedMachine`)."""

    observer: Observer
    redirection: "Redirection | None"

    def call_back(self, function: object, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
        """Call a function on behalf of C code."""


class Target:
    """The object that a function's replacement code calls instead of running the function's own code."""

    __slots__ = ("_function", "redirection")

    def __init__(self, function: FunctionType, targets: dict[int, Any]) -> None:
        key = id(function)
        self._function = weakref.ref(function, lambda _: targets.pop(key, None))
        self.redirection: Redirection | None = None

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function on the machine. A call from another thread than that of the C code runs natively."""
        function, redirection = self._function(), self.redirection
        if function is None:
            raise SystemError("the replacement code of a function ran after the function was deleted")
        if redirection is None:  # another thread entered the replacement code just before the redirection ended
            return function(*arguments, **keywords)
        if redirection.thread == get_ident():
            return redirection.call(function, arguments, keywords)
        return redirection.original(function)(*arguments, **keywords)


def _call_target(*arguments: Any, **keywords: Any) -> Any:
    """Call the string "target", which copies of this function's code replace by a `Target`."""
    target: Any = "target"
    return target(*arguments, **keywords)


# The replacement code and the target of each function, by the function's identity. This is not a `WeakKeyDictionary`,
# because the methods of that class are Python functions, which may themselves be redirected.
_targets: dict[int, tuple[CodeType, Target]] = {}


def _replacement_of(function: FunctionType) -> tuple[CodeType, Target]:
    """Return the replacement code of a function, and its target."""
    entry = _targets.get(id(function))
    if entry is None or entry[0].co_freevars != function.__code__.co_freevars:
        target = Target(function, _targets)
        template = _call_target.__code__
        constants = tuple(target if constant == "target" else constant for constant in template.co_consts)
        code = template.replace(co_consts=constants, co_freevars=function.__code__.co_freevars)
        entry = _targets[id(function)] = code, target
    return entry


class UncachedValueError(Exception):
    """Raised through the C code of `functools.lru_cache` with a call's value, so that the cache stores no value."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Redirection:
    """The redirected functions of one native call, with their original code."""

    def __init__(self, machine: RedirectionTarget) -> None:
        self.thread = get_ident()
        self._machine = machine
        self._outer = machine.redirection
        machine.redirection = self
        self._originals: dict[FunctionType, tuple[CodeType, Target]] = {}
        self.cached: Any = None  # the function with a `functools.lru_cache` that the native call calls, if any
        self.missed = False  # whether this cache had no value, so that the function itself was called

    def add(self, functions: Functions) -> None:
        """Redirect the calls of more functions."""
        for function in functions:
            if function not in self._originals:
                self._redirect(function)

    def _redirect(self, function: FunctionType) -> None:
        """Replace the code of a function by code that calls the machine."""
        code, target = _replacement_of(function)
        self._originals[function] = function.__code__, target
        target.redirection = self
        function.__code__ = code

    def resume(self) -> None:
        """Redirect all functions again."""
        self._machine.redirection = self
        for function in self._originals:
            self._redirect(function)

    def suspend(self) -> None:
        """Restore the original code of all functions temporarily."""
        self._machine.redirection = None
        for function, (code, target) in self._originals.items():
            function.__code__ = code
            target.redirection = None

    def end(self) -> None:
        """Restore the original code of all functions permanently."""
        self.suspend()
        self._machine.redirection = self._outer

    def call(self, function: FunctionType, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """Call a function on the machine on behalf of C code. Python functions in the result are redirected, too.

        Raises `UncachedValueError` with the value if the observer refuses to let `functools.lru_cache` store the value.
        """
        machine = self._machine
        misses_cache = getattr(self.cached, "__wrapped__", None) is function
        if misses_cache:
            machine.observer.on_cache_miss(self.cached)
        try:
            value = machine.call_back(function, arguments, keywords)
        except BaseException as error:
            error.__traceback__ = without_own_entries(error.__traceback__)
            raise
        value = machine.observer.on_called_back(function, value)
        if misses_cache:
            self.missed = True
            self.suspend()
            try:
                is_kept = machine.observer.on_cached(self.cached, arguments, keywords, value, hit=False)
            finally:
                self.resume()
            if not is_kept:
                raise UncachedValueError(value)
        return value

    def original(self, function: FunctionType) -> FunctionType:
        """Return a copy of a function with its original code."""
        code = self._originals[function][0] if function in self._originals else function.__code__
        copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
        copy.__kwdefaults__ = function.__kwdefaults__
        return copy
