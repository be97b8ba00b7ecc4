"""Functions that read or change the outside world: called again at each call, or reported as sharp edges."""

from __future__ import annotations

import functools
import gc
import io
import os
import sys
import time
from collections.abc import Callable
from types import BuiltinMethodType
from typing import Any

from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.outside.draws import NotReplayedError
from thunder_core.frontend.acquire.outside.native_functions import NativeReason, answer_of_function
from thunder_core.frontend.acquire.outside.sharp import DATES
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.symbolic.numbers import concrete
from thunder_core.tracing.library.collection import is_collection_enabled
from thunder_core.tracing.library.draws import file_state

WRITING = frozenset("wax+")
CLOCKS_OF_SPANS = frozenset(
    f"{name}{unit}" for name in ("perf_counter", "monotonic", "process_time", "thread_time") for unit in ("", "_ns")
)


def world_call(acquisition: TracedRun, function: Any) -> Callable[..., Any] | None:
    """Return the replacement of a function that depends on more than its arguments; None for other functions."""
    if type(function) is not BuiltinMethodType:
        of_cython = type(function).__name__ == CYTHON_FUNCTION and answer_of_function(function) is NativeReason.UNKNOWN
        return unknown(acquisition, function) if of_cython else None
    if (type(function.__self__), function.__name__) in ASKED_METHODS:
        return asked(acquisition, function)
    answer = NativeReason.FRESH if is_date_of_now(function) else answer_of_function(function)
    stand_in = STAND_INS.get(answer)
    # a functional program may read only its arguments
    if stand_in is not None and acquisition.outside.surprises is not None:
        acquisition.note_edge(f"the outside world: {getattr(function, '__qualname__', function)}")
        return None
    return None if stand_in is None else stand_in(acquisition, function)


def is_date_of_now(function: Any) -> bool:
    """Whether a function is a method of a date class that returns the current date or time."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    return isinstance(owner, type) and any(issubclass(owner, kind) and name == method for kind, method in DATES)


def asked(acquisition: TracedRun, function: Any) -> Callable[..., Any]:
    """Return a function that reads the outside world, and that the prologue calls again."""

    def named(value: Any) -> Any:
        return acquisition.machine.call(os.fspath, value) if isinstance(value, os.PathLike) else value

    return lambda *args, **kwargs: again(
        acquisition, function, acquisition.draws.asked, tuple(map(named, args)), kwargs
    )


def fresh(acquisition: TracedRun, function: Any) -> Callable[..., Any]:
    """Return a function with a new result at each call, such as a clock, which the prologue calls again."""
    name = getattr(function, "__name__", "")
    if name in CLOCKS_OF_SPANS and not acquisition.draws.is_first(name):
        acquisition.note_edge(f"the time: {name} is read when the call begins, so time spans differ from eager")
    return lambda *args, **kwargs: again(acquisition, function, acquisition.draws.fresh, args, kwargs)


def again(acquisition: TracedRun, function: Any, call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return the result of a function that the prologue calls again.

    If the prologue cannot, report a loud sharp edge.
    """
    try:
        return call(function, args, kwargs)
    except NotReplayedError:
        return with_loud_edge(acquisition, function)(*args, **kwargs)


def with_loud_edge(acquisition: TracedRun, function: Any) -> Callable[..., Any]:
    """Return a function that changes the outside world or cannot be called again, and report a loud sharp edge."""

    def run(*args: Any, **kwargs: Any) -> Any:
        module = getattr(function.__self__, "__name__", "")
        acquisition.note_edge(f"the outside world: {module}.{function.__name__}", loud=True)
        return acquisition.machine.natively(function, args, kwargs)

    return run


def asked_or_set(acquisition: TracedRun, function: Any) -> Callable[..., Any]:
    """Return a function that only reads a setting, unless it is called with a new value."""

    def run(*args: Any, **kwargs: Any) -> Any:
        values = (*(args[1:] if function.__name__ in KEYED_SETTINGS else args), *kwargs.values())
        is_set = any(value is not None for value in values)
        return (with_loud_edge if is_set else asked)(acquisition, function)(*args, **kwargs)

    return run


def deep(acquisition: TracedRun, function: Any) -> Callable[..., Any]:
    """Return a C function that reads its arguments, which are guarded with everything that they contain."""

    def run(*args: Any, **kwargs: Any) -> Any:
        acquisition.outside.expand_deeply((args, kwargs))
        return acquisition.machine.natively(function, args, kwargs)

    return run


def unknown(acquisition: TracedRun, function: Any) -> Callable[..., Any]:
    """Return a C function of another package. Its arguments are guarded with all contents, and the call is reported."""

    def run(*args: Any, **kwargs: Any) -> Any:
        name = f"{function.__module__}.{function.__name__}"
        acquisition.note_edge(f"C code whose reads are not known: {name}", loud=True)
        return deep(acquisition, function)(*args, **kwargs)

    return run


CYTHON_FUNCTION = "cython_function_or_method"  # each module that Cython compiled may have a class of this name
ASKED_METHODS = frozenset({(functools._lru_cache_wrapper, "cache_info"), (type, "__subclasses__")})
KEYED_SETTINGS = frozenset({"setlocale"})  # functions whose first argument names the setting
STAND_INS: dict[NativeReason, Callable[[Any, Any], Callable[..., Any]]] = {
    NativeReason.ASKED: asked,
    NativeReason.FRESH: fresh,
    NativeReason.WORLD: with_loud_edge,
    NativeReason.ASKED_OR_SET: asked_or_set,
    NativeReason.DEEP: deep,
    NativeReason.UNKNOWN: unknown,
}


@lookaside(gc.isenabled)
def ask_for_collection(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Guard whether garbage collection is enabled. Tracing pauses the collection."""

    def run() -> bool:
        acquisition.settings.asked["gc.isenabled()"] = is_collection_enabled()
        return is_collection_enabled()

    return run


@lookaside(sys.getrecursionlimit)
def ask_for_recursion_limit(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Guard the recursion limit. Tracing needs a higher limit."""

    def run() -> int:
        limit: int = acquisition.machine.limit
        if sys.setrecursionlimit not in acquisition.settings.changed_functions:
            acquisition.settings.asked["sys.getrecursionlimit()"] = limit
        return limit

    return run


@lookaside(sys.setrecursionlimit)
def set_recursion_limit(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Set the recursion limit at each call, after the computation. While tracing, the interpreter keeps the limit."""
    acquisition.settings.changed_functions.add(function)
    acquisition.outside.effects.undo_by(functools.partial(function, acquisition.machine.limit))
    acquisition.outside.effects.calls(function, args)


@lookaside(time.sleep, os.putenv, os.unsetenv)
def do_later(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Call a function that returns nothing at each call, after the computation, and not while tracing."""
    return lambda *args: acquisition.outside.effects.calls(function, args)


@lookaside(io.open)
def open_file(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Guard the size and modification time of a file that is read. A file that is written to is a loud sharp edge."""

    def run(file: Any, mode: Any = "r", *rest: Any, **options: Any) -> Any:
        writes = bool(WRITING & set(concrete(mode)))
        acquisition.note_edge("input and output: open", loud=writes or isinstance(file, int))
        if not writes and not isinstance(file, int):
            named = acquisition.machine.call(os.fspath, file)
            acquisition.draws.asked(file_state, (named,), {})
        return acquisition.machine.natively(function, (file, mode, *rest), options)

    return run
