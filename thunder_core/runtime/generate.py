"""Generated Python: a printed trace, compiled by Python and visible in tracebacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any
from weakref import WeakKeyDictionary

from thunder_core.errors import Bug
from thunder_core.ir.check import check_takes_numbers
from thunder_core.ir.printer import Source, print_trace
from thunder_core.ir.source_lines import executed_source
from thunder_core.ir.trace import Trace
from thunder_core.runtime.library.deferred import deferred

Rewriting = Callable[[Trace], Trace]
_traces: WeakKeyDictionary[FunctionType, Trace] = WeakKeyDictionary()
_rewriting: list[Rewriting] = []  # the one that is in force, if one is
_plain: dict[FunctionType, CodeType] = {}  # what the functions that it changed are to be again


def executable(source: Source, name: str) -> Callable[..., Any]:
    """The function of that name that the source defines; tracebacks show its lines."""
    function: Callable[..., Any] = _defined(source, name, dict(source.constants))
    return function


def executable_at_first_call(
    source: Source, name: str, prepare: Callable[[], None] = lambda: None
) -> Callable[..., Any]:
    """The function of that name that the source defines; nothing of the source is executed before it is called.

    At the first call `prepare` is called, and then the source is executed.
    """
    namespace = dict(source.constants)

    def define() -> Callable[..., Any]:
        prepare()
        function: Callable[..., Any] = _defined(source, name, namespace)
        return function

    return deferred(name, namespace, define)


def executable_trace(trace: Trace) -> Callable[..., Any]:
    """A trace as a function, which runs as another one while traces are `rewritten`."""
    function = executable(print_trace(check_takes_numbers(trace)), trace.name)
    assert isinstance(function, FunctionType)
    _traces[function] = trace
    _rewrite(function, trace)
    return function


@contextmanager
def rewritten(rewriting: Rewriting) -> Iterator[None]:
    """While this lasts, the functions of traces run what is made of these; so do functions that are made meanwhile.

    Raises `Bug` within another one.
    """
    if _rewriting:
        raise Bug("traces are rewritten already", fix="leave the block that rewrites them first")
    _rewriting.append(rewriting)
    try:
        for function, trace in list(_traces.items()):
            _rewrite(function, trace)
        yield
    finally:
        _rewriting.clear()
        while _plain:
            function, code = _plain.popitem()
            function.__code__ = code


def _rewrite(function: FunctionType, trace: Trace) -> None:
    """Have a function run what the rewriting in force makes of its trace; it finds constants where it always did."""
    for rewriting in _rewriting:
        source = print_trace(rewriting(trace))
        function.__globals__.update(source.constants)
        _plain[function] = function.__code__
        function.__code__ = _defined(source, trace.name, function.__globals__).__code__


def _defined(source: Source, name: str, namespace: dict[str, Any]) -> Any:
    return executed_source(name, source.text, namespace, name)
