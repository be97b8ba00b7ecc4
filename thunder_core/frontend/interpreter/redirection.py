"""Redirection: while C code runs, replaced code objects make the Python functions that it calls run on the machine."""

import weakref
from collections.abc import Sequence
from threading import get_ident
from types import CodeType, FunctionType
from typing import Any, Protocol

from thunder_core.frontend.interpreter.observer import Observer
from thunder_core.frontend.interpreter.reach import Functions
from thunder_core.frontend.interpreter.tracebacks import without_own_entries


class Redirecting(Protocol):
    """The machine that calls from C code are redirected to (`interpreter.observed.ObservedMachine`)."""

    observer: Observer
    redirection: "Redirection | None"

    def call_back(self, function: object, arguments: Sequence[Any], keywords: dict[str, Any]) -> Any:
        """Call a function on behalf of C code."""


class Target:
    """The target of a function's replacement code: the machine, in the thread of the native call."""

    __slots__ = ("_function", "redirection")

    def __init__(self, function: FunctionType, targets: dict[int, Any]) -> None:
        key = id(function)
        self._function = weakref.ref(function, lambda _: targets.pop(key, None))
        self.redirection: Redirection | None = None

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function on the machine, or natively if another thread calls it."""
        function, redirection = self._function(), self.redirection
        if function is None or redirection is None:
            raise SystemError("a function was redirected without a target")
        if redirection.thread == get_ident():
            return redirection.call(function, arguments, keywords)
        return redirection.original(function)(*arguments, **keywords)


def _call_target(*arguments: Any, **keywords: Any) -> Any:
    """Call the target. The code of this function is copied with the target in place of the string."""
    target: Any = "target"
    return target(*arguments, **keywords)


# Replacement code and target of a function, by the function's identity. A `WeakKeyDictionary` would not do, because its
# methods are Python functions, which may themselves be redirected.
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


class NotKeptError(Exception):
    """Raised through the C code of `functools.lru_cache`, so that it does not store the value of the call."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


class Redirection:
    """The redirected functions of one native call, with their original code."""

    def __init__(self, machine: Redirecting) -> None:
        self.thread = get_ident()
        self._machine = machine
        self._outer = machine.redirection
        machine.redirection = self
        self._originals: dict[FunctionType, tuple[CodeType, Target]] = {}
        # The `functools.lru_cache` function that is called, and whether the cache had no value.
        self.cached: Any = None
        self.missed = False

    def add(self, functions: Functions) -> None:
        """Redirect these functions too."""
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
        """Call a function on the machine on behalf of C code. Functions that the result leads to are redirected, too.

        Raises `NotKeptError` with the value if the observer refuses to let `functools.lru_cache` store the value.
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
                raise NotKeptError(value)
        return value

    def original(self, function: FunctionType) -> FunctionType:
        """Return a copy of a function with its original code."""
        code = self._originals[function][0] if function in self._originals else function.__code__
        copy = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
        copy.__kwdefaults__ = function.__kwdefaults__
        return copy
