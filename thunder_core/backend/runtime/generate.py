"""Generated Python: a printed trace, compiled by Python and visible in tracebacks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import RLock
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from thunder_core.backend.runtime.agreement import compare_first
from thunder_core.foundation.errors import Bug
from thunder_core.tracing.ir.check import check_takes_numbers
from thunder_core.tracing.ir.printer import Source, print_trace
from thunder_core.tracing.ir.source_lines import execute_source
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.deferred import deferred_function

Rewriting = Callable[[Trace], Trace]
_traces: WeakKeyDictionary[FunctionType, Trace] = WeakKeyDictionary()
_rewriting: list[Rewriting] = []  # the active rewriting, if any
_plain: dict[FunctionType, CodeType] = {}  # the original code of the rewritten functions
FIRST_REWRITTEN_CALL = "__first_rewritten_call__"  # the global name of the function that rewrites a function
_REWRITING_LOCK = RLock()
os.register_at_fork(after_in_child=_REWRITING_LOCK._at_fork_reinit)  # type: ignore[attr-defined]


def executable(source: Source, name: str) -> Callable[..., Any]:
    """Return the function of that name that the source defines; tracebacks show its lines."""
    function: Callable[..., Any] = _define(source, name, dict(source.constants))
    return function


def executable_at_first_call(
    source: Source, name: str, prepare: Callable[[], None] = lambda: None
) -> Callable[..., Any]:
    """Return the function of that name that the source defines; the source is executed at the first call.

    The first call calls `prepare` and then executes the source.
    """
    namespace = dict(source.constants)

    def define() -> Callable[..., Any]:
        prepare()
        function: Callable[..., Any] = _define(source, name, namespace)
        return function

    return deferred_function(name, namespace, define)


def executable_trace(trace: Trace) -> Callable[..., Any]:
    """Return a trace as a function, which runs a rewritten trace within `rewriting_traces`.

    Before the first call, the ranks of a process group compare the collectives of the trace, if it has any.
    """
    function = executable(print_trace(check_takes_numbers(trace)), trace.name)
    assert isinstance(function, FunctionType)
    _traces[function] = trace
    _rewrite(function, trace)
    return compare_first(function, trace)


@contextmanager
def rewriting_traces(rewriting: Rewriting) -> Iterator[None]:
    """During the block, functions of traces run the rewritten traces; so do functions that are created during the
    block.

    A trace is rewritten only when its function is called, because a process may have thousands of functions. Raises
    `Bug` if another `rewriting_traces` block is active.
    """
    if _rewriting:
        raise Bug(
            "traces are already being rewritten", fix="leave the first block that rewrites traces before the second"
        )
    _rewriting.append(rewriting)
    try:
        for function, trace in list(_traces.items()):
            _rewrite(function, trace)
        yield
    finally:
        with _REWRITING_LOCK:
            _rewriting.clear()
            while _plain:
                function, code = _plain.popitem()
                function.__code__ = code
                function.__globals__.pop(FIRST_REWRITTEN_CALL, None)


def _rewrite(function: FunctionType, trace: Trace) -> None:
    """Make a function run its trace as rewritten by the active rewriting, from the next call on."""
    for rewriting in _rewriting:
        _plain[function] = function.__code__
        function.__globals__[FIRST_REWRITTEN_CALL] = partial(_first_rewritten_call, function, trace, rewriting)
        function.__code__ = _until_rewritten.__code__


def _first_rewritten_call(
    function: FunctionType, trace: Trace, rewriting: Rewriting, /, *args: Any, **kwargs: Any
) -> Any:
    """Rewrite a function, unless another thread has rewritten it, and call it.

    The constants of the rewritten trace are added to the function's globals.
    """
    with _REWRITING_LOCK:
        if rewriting in _rewriting and function.__code__ is _until_rewritten.__code__:
            source = print_trace(rewriting(trace))
            function.__globals__.update(source.constants)
            function.__code__ = _define(source, trace.name, function.__globals__).__code__
    return function(*args, **kwargs)


def _until_rewritten(*args: Any, **kwargs: Any) -> Any:
    """Call `_first_rewritten_call`: functions of traces have this code until their first rewritten call."""
    return __first_rewritten_call__(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821 (in the globals)


def _define(source: Source, name: str, namespace: dict[str, Any]) -> Any:
    return execute_source(name, source.text, namespace, name)
