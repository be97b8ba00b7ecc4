"""Functions that read or change the outside world: called again at each call, or reported as sharp edges."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import functools
import gc
import inspect
import io
import os
import sys
import time
import traceback
from collections.abc import Callable
from types import BuiltinMethodType
from typing import Any

from thunder_core.foundation.signal_handlers import restore_handlers
from thunder_core.frontend.acquire.lookaside_table import lookaside, lookaside_of_each
from thunder_core.frontend.acquire.outside.call_traits import cached_for_modules
from thunder_core.frontend.acquire.outside.draws import NotReplayedError
from thunder_core.frontend.acquire.outside.native_functions import CFunctionKind, function_kind_of
from thunder_core.frontend.acquire.outside.sharp import DATE_METHODS
from thunder_core.frontend.acquire.run.outer_frames import guard_present_exception, leave_callers_to_eager
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.callables import callable_attribute, callable_name
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken
from thunder_core.tracing.capture.symbolic.numbers import concrete
from thunder_core.tracing.library.collection import is_collection_enabled
from thunder_core.tracing.library.draws import file_state

WRITE_MODES = frozenset("wax+")
CLOCK_STEP = 20_000_000  # the most nanoseconds by which the times of files are behind the clock
SPAN_CLOCKS = frozenset(
    f"{name}{unit}" for name in ("perf_counter", "monotonic", "process_time", "thread_time") for unit in ("", "_ns")
)


def call_world_function(run: TracedRun, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a C function that reads or changes the outside world; return `NOT_TAKEN` for other functions."""
    if type(function) is not BuiltinMethodType:
        of_cython = type(function).__name__ == CYTHON_FUNCTION and function_kind_of(function) is CFunctionKind.UNKNOWN
        return call_unknown(run, function, args, kwargs) if of_cython else NOT_TAKEN
    owner_class = type if isinstance(function.__self__, type) else type(function.__self__)
    query = QUERY_METHODS.get((owner_class, function.__name__))
    if query is not None:
        return query(run, function, args, kwargs)
    stand_in = stand_in_of(function)
    if stand_in is None:
        return NOT_TAKEN
    if run.outside.is_functional:  # a functional program may read only its arguments
        run.note_edge(f"the outside world: {getattr(function, '__qualname__', function)}")
        return NOT_TAKEN
    return stand_in(run, function, args, kwargs)


@cached_for_modules
def stand_in_of(function: Any) -> Callable[[Any, Any, Any, Any], Any] | None:
    """Return the function that calls a C function which reads or changes the outside world; None for the others."""
    return STAND_INS.get(CFunctionKind.FRESH if is_date_of_now(function) else function_kind_of(function))


@lookaside(_signal.getsignal, _signal.signal)
def show_handlers(run: TracedRun, /, *_args: object) -> NotTaken:
    """Restore the user's signal handlers, one of which the program reads or replaces, and return `NOT_TAKEN`."""
    restore_handlers()
    return NOT_TAKEN


def call_query(run: TracedRun, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function that reads the outside world, and that the prologue calls again."""
    named = tuple(run.machine.call(os.fspath, arg) if isinstance(arg, os.PathLike) else arg for arg in args)
    require_unchanged_file(run, *named[:1])
    return call_again(run, function, run.draws.query, named, kwargs)


def read_statistics_of_cache(run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `cache_info` of a function under `functools.lru_cache`, unless the program calls the function, too."""
    run.cached_calls.note_read_of_statistics(function.__self__)
    return call_query(run, function, args, kwargs)


def require_unchanged_file(run: TracedRun, name: object = None) -> None:
    """Leave the program to eager PyTorch if it reads a file or a folder that it has changed or created itself.

    The prologue reads files before the program changes them, so it would read other contents, or find no file.
    """
    if not (run.edges.has_loud and isinstance(name, str | bytes)):
        return
    try:
        changed = os.lstat(name).st_ctime_ns
    except (OSError, ValueError):
        return
    if changed >= run.process_before.started - CLOCK_STEP:
        run.leave_to_eager(
            f"the program reads {os.fsdecode(name)}, which it has changed itself",
            "write the file outside the compiled program",
        )


def call_fresh(run: TracedRun, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function with a new result at each call, such as a clock, which the prologue calls again."""
    name = callable_name(function)
    if name in SPAN_CLOCKS and not run.draws.is_first(name):
        run.note_edge(f"the time: {name} is read when the call begins, so time spans differ from eager")
    return call_again(run, function, run.draws.call_fresh, args, kwargs)


def is_date_of_now(function: object) -> bool:
    """Whether a function is a method of a date class that returns the current date or time."""
    owner, name = callable_attribute(function, "__self__"), callable_name(function)
    return isinstance(owner, type) and any(issubclass(owner, kind) and name == method for kind, method in DATE_METHODS)


def call_again(
    run: TracedRun, function: object, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return the result of a function that the prologue calls again; report a loud sharp edge if the prologue cannot
    call it.
    """
    try:
        return call(function, args, kwargs)
    except NotReplayedError:
        return call_with_loud_edge(run, function, args, kwargs)


def call_with_loud_edge(run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function that changes the outside world or cannot be called again, and report a loud sharp edge."""
    module = getattr(function.__self__, "__name__", "")
    run.note_edge(f"the outside world: {module}.{function.__name__}", loud=True)
    return run.machine.call_unreported(function, args, kwargs)


def query_or_change(run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function that only reads a setting, unless it is called with a new value."""
    values = (*(args[1:] if function.__name__ in KEYED_SETTINGS else args), *kwargs.values())
    is_set = any(value is not None for value in values)
    return (call_with_loud_edge if is_set else call_query)(run, function, args, kwargs)


def call_reading_deeply(run: TracedRun, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a C function that reads its arguments. The arguments and their contents are guarded."""
    run.outside.expand_deeply((args, kwargs))
    return run.machine.call_unreported(function, args, kwargs)


def call_unknown(run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a C function of another package. Its arguments are guarded with all contents, and the call is reported."""
    run.note_edge(f"C code whose reads are not known: {function.__module__}.{function.__name__}", loud=True)
    return call_reading_deeply(run, function, args, kwargs)


STACK_READERS = (
    *(inspect.stack, inspect.getouterframes),
    *(traceback.extract_stack, traceback.format_stack, traceback.print_stack, traceback.walk_stack),
)
FRAME_NAME_READERS = (sys._getframemodulename,) if hasattr(sys, "_getframemodulename") else ()
CYTHON_FUNCTION = "cython_function_or_method"  # each module that Cython compiled may have a class of this name
QUERY_METHODS: dict[tuple[type, str], Callable[[Any, Any, Any, Any], Any]] = {
    (functools._lru_cache_wrapper, "cache_info"): read_statistics_of_cache,
    (type, "__subclasses__"): call_query,
}
KEYED_SETTINGS = frozenset({"setlocale"})  # functions whose first argument names the setting
STAND_INS: dict[CFunctionKind, Callable[[Any, Any, Any, Any], Any]] = {
    CFunctionKind.QUERY: call_query,
    CFunctionKind.FRESH: call_fresh,
    CFunctionKind.WORLD: call_with_loud_edge,
    CFunctionKind.QUERY_OR_CHANGE: query_or_change,
    CFunctionKind.DEEP: call_reading_deeply,
    CFunctionKind.UNKNOWN: call_unknown,
}


@lookaside(gc.isenabled)
def ask_for_collection(run: TracedRun, /) -> bool:
    """Guard whether garbage collection is enabled. Tracing pauses the collection."""
    run.settings.answers["gc.isenabled()"] = is_collection_enabled()
    return is_collection_enabled()


@lookaside(sys.getrecursionlimit)
def ask_for_recursion_limit(run: TracedRun, /) -> int:
    """Guard the recursion limit. Tracing needs a higher limit."""
    limit: int = run.machine.limit
    if sys.setrecursionlimit not in run.settings.changed_functions:
        run.settings.answers["sys.getrecursionlimit()"] = limit
    return limit


@lookaside(sys.setrecursionlimit)
def set_recursion_limit(run: TracedRun, /, *args: Any) -> NotTaken:
    """Set the recursion limit at each call, after the computation. While tracing, the interpreter keeps the limit."""
    run.settings.changed_functions.add(sys.setrecursionlimit)
    run.outside.effects.add_undo(functools.partial(sys.setrecursionlimit, run.machine.limit))
    run.outside.effects.add_epilogue_call(sys.setrecursionlimit, args)
    return NOT_TAKEN


@lookaside(inspect.currentframe)
def current_frame(run: TracedRun, /) -> Any:
    """Return the frame of the program that asks for it."""
    return run.machine.call(sys._getframe)


@lookaside(sys.exc_info, sys.exception)
def read_exception(run: TracedRun, /) -> NotTaken:
    """Guard the exception that is handled, if it is not the program's own, and return `NOT_TAKEN`."""
    guard_present_exception(run)
    return NOT_TAKEN


@lookaside_of_each(*STACK_READERS)
def read_stack(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> NotTaken:
    """Leave to eager PyTorch a program that reads all frames that are running: tracing adds its own to them."""
    leave_callers_to_eager(run, f"calls `{function.__module__}.{function.__name__}`, which reads")
    return NOT_TAKEN


@lookaside_of_each(sys._getframe, *FRAME_NAME_READERS)
def read_frame(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> NotTaken:
    """Leave to eager PyTorch a program that reads a frame outside the program by its depth."""
    depth, frame = next(iter((*args, *kwargs.values(), 0))), run.machine.frame
    if frame is not None and isinstance(depth, int) and depth > sum(1 for _ in frame.callers()):
        leave_callers_to_eager(run, f"calls `sys.{function.__name__}({depth})`, which reads")
    return NOT_TAKEN


@lookaside_of_each(time.sleep, os.putenv, os.unsetenv)
def call_later(function: Callable[..., Any], run: TracedRun, /, *args: Any) -> None:
    """Let the epilogue call a function that returns nothing, and do not call it while tracing."""
    run.outside.effects.add_epilogue_call(function, args)


@lookaside(io.open)
def open_file(run: TracedRun, /, file: object, mode: object = "r", *rest: Any, **options: Any) -> Any:
    """Guard the size and modification time of a file that is read. A file that is written to is a loud sharp edge."""
    writes = bool(WRITE_MODES & set(concrete(mode)))
    run.note_edge("input and output: open", loud=writes or isinstance(file, int))
    if not writes and not isinstance(file, int):
        named = run.machine.call(os.fspath, file)
        require_unchanged_file(run, named)
        run.draws.query(file_state, (named,), {})
    return run.machine.call_unreported(io.open, (file, mode, *rest), options)
