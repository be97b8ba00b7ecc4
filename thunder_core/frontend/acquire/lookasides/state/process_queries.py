"""Python functions that run natively and query the process: threads, loggers, settings of NumPy.

The prologue calls the functions of `QUERIES` again at each call. Functions of `CHANGING` change the process
permanently, which is reported as a sharp edge. If a program uses NumPy, the settings of NumPy are guarded.
"""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable
from typing import Any

from thunder_core.frontend.acquire.lookasides.state.world import call_query
from thunder_core.frontend.acquire.outside.call_traits import owner_of
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.callables import callable_attribute
from thunder_core.frontend.interpreter.observer import NOT_TAKEN


def _getters(kind: type, *names: str) -> list[Callable[..., Any]]:
    """Return the getters of properties of a class."""
    return [vars(kind)[name].fget for name in names if isinstance(vars(kind).get(name), property)]


THREADS = "current_thread currentThread main_thread active_count activeCount enumerate getprofile gettrace"
LOGGERS = "getLogger getLevelName getLoggerClass getLogRecordFactory getLevelNamesMapping getHandlerByName"
QUERIES: frozenset[Callable[..., Any]] = frozenset(
    {
        *(getattr(threading, name) for name in THREADS.split() if hasattr(threading, name)),
        *_getters(threading.Thread, "name", "ident", "daemon", "native_id"),
        *(threading.Thread.is_alive, threading.Thread.getName, threading.Thread.isDaemon),
        *(getattr(logging, name) for name in LOGGERS.split() if hasattr(logging, name)),
        *_getters(logging.Manager, "disable"),
        *(logging.Manager.getLogger, logging.Logger.getChild),
    }
)
CHANGING: frozenset[Callable[..., Any]] = frozenset(
    {
        *(logging.disable, logging.basicConfig, logging.captureWarnings, logging.addLevelName, logging.setLoggerClass),
        *(logging.Logger.setLevel, logging.Logger.addHandler, logging.Logger.removeHandler),
        *(logging.Filterer.addFilter, logging.Filterer.removeFilter, logging.Handler.setLevel),
        *(threading.settrace, threading.setprofile, threading.Thread.setName, threading.Thread.setDaemon),
        warnings.resetwarnings,
    }
)
NUMPY_SETTERS = frozenset({"seterr", "seterrcall", "setbufsize", "set_printoptions"})


def call_process_function(run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a Python function that queries or changes the process, or return `NOT_TAKEN`."""
    plain = callable_attribute(function, "__func__", function)
    package = str(plain.__module__).partition(".")[0]
    run.native_reads.guard_settings_of_package(package)
    if plain in CHANGING or (package == "numpy" and plain.__name__ in NUMPY_SETTERS):
        run.note_edge(f"the outside world: {package}.{plain.__qualname__}", loud=True)
        return NOT_TAKEN
    if plain not in QUERIES or run.outside.is_functional:
        return NOT_TAKEN
    return call_query(run, plain, (*owner_of(function), *args), kwargs)
