"""Output that the program prints or logs: the epilogue prints it at each call, with the values of that call."""

from __future__ import annotations

import logging
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from functools import _lru_cache_wrapper
from types import BuiltinMethodType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.outside.containers import container_base
from thunder_core.frontend.acquire.outside.reductions import Dressed
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.acquire.written.rebuilding import attributes_of, is_rebuildable
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.torch_facts.texts import SymbolicText
from thunder_core.tracing.ir.constants import BY_IDENTITY, is_constant
from thunder_core.tracing.ir.tree import of_class
from thunder_core.tracing.library.objects import fill, is_native, new
from thunder_core.tracing.library.output import log, log_once

LEVELS = {
    logging.Logger.debug: logging.DEBUG,
    logging.Logger.info: logging.INFO,
    logging.Logger.warning: logging.WARNING,
    logging.Logger.error: logging.ERROR,
    logging.Logger.critical: logging.CRITICAL,
}
OF_ROOT = {
    logging.debug: logging.DEBUG,
    logging.info: logging.INFO,
    logging.warning: logging.WARNING,
    logging.error: logging.ERROR,
    logging.critical: logging.CRITICAL,
}
LOGGING = frozenset(method.__name__ for method in LEVELS)  # names of methods of loggers
STREAMING = frozenset({"write", "writelines", "flush"})  # names of methods of streams
CONTAINERS = (list, tuple, dict, set, frozenset, deque, OrderedDict, defaultdict)
LATER_WRITES = "print of an object from outside whose tensors may be written to after this line"
UNKNOWN_STATE = "input and output: the string of a {} is not computed again"


class NotShownError(Exception):
    """A value cannot be rebuilt in the epilogue, so that only its text can be printed."""


@lookaside(print)
def print_later(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Log the call as an effect. Print at once to a file that the program has made; other files are a sharp edge."""
    stream = kwargs.get("file")
    target = sys.stdout if stream is None else stream
    if not is_stream(acquisition, target, named=stream is not None):
        if acquisition.outside.path_of(target) is not None:
            acquisition.note_edge("input and output: print to a file from outside", loud=True)
        return None

    def run(*args: Any, **kwargs: Any) -> None:
        copies = tuple(as_now(acquisition, arg) for arg in args)
        acquisition.outside.effects.printed(copies, kwargs)

    return run


def method_of_stream(acquisition: TracedRun, method: Any) -> Callable[..., Any] | None:
    """Return the replacement of `write`, `writelines` or `flush` of a process's stream; the epilogue calls them."""
    if type(method) is not BuiltinMethodType or method.__name__ not in STREAMING:
        return None
    stream, name = method.__self__, method.__name__
    path = acquisition.outside.path_of(stream)
    if path is None or not is_stream(acquisition, stream, named=True):
        return None

    def run(*texts: str) -> int | None:
        acquisition.outside.effects.written(path, name, texts)
        return len(texts[0]) if name == "write" else None

    def run_lines(lines: Any) -> None:
        texts = acquisition.machine.call(list, lines)
        if not all(isinstance(text, str) for text in texts):
            acquisition.machine.natively(method, (texts,), {})
        for text in texts:
            write_text(text)

    def write_text(text: str) -> None:
        acquisition.outside.effects.written(path, "write", (text,))

    return run_lines if name == "writelines" else run


def is_stream(acquisition: TracedRun, stream: Any, *, named: bool) -> bool:
    """Whether a stream is one of the process's streams from before the program, with a path to it if `named`.

    Output to other streams, such as a `StringIO`, may be read by the program.
    """
    began_with = any(stream is known for known in acquisition.streams)
    return began_with and (not named or acquisition.outside.path_of(stream) is not None)


@lookaside(*LEVELS, *OF_ROOT)
def log_later(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Log a message as an effect if its logger is enabled for that level. If the logger is not, guard that."""
    level = OF_ROOT.get(function) or LEVELS[function]
    logger, words = (logging.root, args) if function in OF_ROOT else (args[0], args[1:])
    if kwargs or not words or type(logger) not in (logging.Logger, logging.RootLogger):
        acquisition.note_edge(f"input and output: logging of {', '.join(kwargs) or 'a custom logger'}", loud=True)
        return None

    def run(*_: Any) -> None:
        name = logger.name
        if not logger.isEnabledFor(level):
            acquisition.settings.asked[f"logging.getLogger({name!r}).isEnabledFor({level})"] = False
            return
        place = acquisition.place().source
        where = (
            (place.filename, place.lineno, place.function.rpartition(".")[2])
            if place is not None
            else ("<thunder>", 0, "")
        )
        copies = tuple(as_now(acquisition, word) for word in words)
        acquisition.outside.effects.calls(log, (name, level, where, *copies))

    return run


@lookaside(logging.Logger.isEnabledFor, logging.Logger.getEffectiveLevel, logging.Logger.hasHandlers)
def ask_logger(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Guard a logger's answer about its settings."""
    if not args or kwargs or not all(map(is_constant, args[1:])) or logging.getLogger(args[0].name) is not args[0]:
        return None

    def run(logger: logging.Logger, *rest: Any) -> Any:
        answer = function(logger, *rest)
        question = f"logging.getLogger({logger.name!r}).{function.__name__}({', '.join(map(repr, rest))})"
        acquisition.settings.asked[question] = answer
        return answer

    return run


def method_that_logs_once(acquisition: TracedRun, method: Any) -> Callable[..., Any] | None:
    """Return the replacement of a logger's method that logs each message once, with `functools.lru_cache`.

    The epilogue calls the method, because only its cache knows whether the message was logged already.
    """
    logger: Any = getattr(method, "__self__", None)
    function: Any = getattr(method, "__func__", None)
    if type(logger) is not logging.Logger or not logs_once(function) or logging.getLogger(logger.name) is not logger:
        return None

    def run(*words: Any, **named: Any) -> Any:
        if named or not all(map(is_constant, words)):
            return acquisition.machine.call_cached(function, (logger, *words), named)
        acquisition.outside.effects.calls(log_once, (logger.name, function.__name__, words))
        return None

    return run


def logs_once(function: Any) -> bool:
    """Whether a function is a cached method added to all loggers, which only logs messages not logged before."""
    if not isinstance(function, _lru_cache_wrapper):
        return False
    code = getattr(function.__wrapped__, "__code__", None)
    name = getattr(function, "__name__", "")
    return code is not None and logging.Logger.__dict__.get(name) is function and set(code.co_names) <= LOGGING


def as_now(acquisition: TracedRun, value: Any) -> Any:
    """Return a copy of a value as it is now, for the epilogue to show, or the value's text if it cannot be rebuilt."""
    try:
        return shown(acquisition, value, {})
    except NotShownError:
        if is_native(type(value)):
            acquisition.note_edge(UNKNOWN_STATE.format(type(value).__name__), loud=True)
        return acquisition.machine.call(str, value)


def shown(acquisition: TracedRun, value: Any, copies: dict[int, Any]) -> Any:
    """Return a copy of a value with copies of its tensors and of objects that the program made.

    The program may change these later. Objects from outside without tensors are not copied: the epilogue shows them as
    they are at this point of the epilogue.
    """
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, torch.Tensor):
        return copies.setdefault(id(value), shown_tensor(acquisition, value))
    if is_constant(value) or isinstance(value, (SymbolicNumber, *BY_IDENTITY)) or type(value) is SymbolicText:
        return value
    if acquisition.outside.path_of(value) is not None:
        if type(value) not in CONTAINERS:
            acquisition.printed.append((len(acquisition.recorder.bound_symbols), value, acquisition.place().source))
            return value
        if not holds_tensors(value, set()):
            return value
        acquisition.outside.expand_whole(value)
    return _copied(acquisition, value, copies)


def shown_tensor(acquisition: TracedRun, tensor: torch.Tensor) -> Any:
    """Return a copy of a tensor's values, with the autograd state that the tensor's text shows."""
    values, data = tensor.detach().clone(), acquisition.recorder.data
    if not data.requires_grad(tensor):
        return values
    return Dressed(values, torch.Tensor if type(tensor) is FakeTensor else type(tensor), data.node_of(tensor))


def _copied(acquisition: TracedRun, value: Any, copies: dict[int, Any]) -> Any:
    kind: Any = type(value)

    def part(item: Any) -> Any:
        return shown(acquisition, item, copies)

    if isinstance(value, tuple):
        items = tuple.__new__(tuple, map(part, tuple.__iter__(value)))
        return items if kind is tuple else of_class(kind, items, getattr(value, "__dict__", {}))
    if kind is slice:
        return slice(*map(part, (value.start, value.stop, value.step)))
    if kind is frozenset:
        return frozenset(map(part, value))
    if not is_rebuildable(kind) or getattr(value, "maxlen", None) is not None:
        raise NotShownError
    copy = copies[id(value)] = new(kind)
    state = {name: part(item) for name, item in attributes_of(value).items()}
    if isinstance(value, dict):
        fill(copy, items={part(key): part(item) for key, item in dict.items(value)}, state=state)
    else:
        base = container_base(value)
        fill(copy, items=[part(item) for item in base.__iter__(value)] if base else (), state=state)
    return copy


def holds_tensors(value: Any, seen: set[int]) -> bool:
    """Whether a container contains tensors, at any depth."""
    if isinstance(value, torch.Tensor | SymbolicNumber) or type(value) is SymbolicText:
        return True
    if type(value) not in CONTAINERS or id(value) in seen:
        return False
    seen.add(id(value))
    return any(holds_tensors(item, seen) for item in (value.values() if isinstance(value, dict) else value))


def note_later_writes(acquisition: TracedRun) -> None:
    """Report a sharp edge if the program may write to tensors of an outside object that the epilogue will show."""
    bsyms = acquisition.recorder.bound_symbols
    for index, value, where in acquisition.printed:
        state = getattr(value, "__dict__", None)
        has_tensors = isinstance(state, dict) and any(map(is_tensor, state.values()))
        if has_tensors and not isinstance(value, torch.nn.Module) and any(bsym.mutates for bsym in bsyms[index:]):
            acquisition.sharp_edges.setdefault(LATER_WRITES, where)
            acquisition.loud_edges.add(LATER_WRITES)


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor."""
    return isinstance(value, torch.Tensor)
