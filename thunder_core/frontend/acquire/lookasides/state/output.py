"""Output that the program prints or logs: the epilogue prints it at each call, with the values of that call."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from functools import _lru_cache_wrapper
from types import BuiltinMethodType
from typing import Any

from thunder_core.frontend.acquire.lookaside_table import lookaside, lookaside_of_each
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.acquire.run.output_copies import NotShownError, copy_for_output
from thunder_core.frontend.acquire.run.unread_output import FIX_FOR_LOGS
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.callables import callable_attribute, callable_name
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken
from thunder_core.tracing.capture.torch_facts.texts import SymbolicText
from thunder_core.tracing.ir.constants import is_constant
from thunder_core.tracing.library.objects import is_native
from thunder_core.tracing.library.output import handlers_of, log, log_by_function, log_once, logs_to_own_code

LEVELS = {
    logging.Logger.debug: logging.DEBUG,
    logging.Logger.info: logging.INFO,
    logging.Logger.warning: logging.WARNING,
    logging.Logger.error: logging.ERROR,
    logging.Logger.critical: logging.CRITICAL,
}
ROOT_LEVELS = {
    logging.debug: logging.DEBUG,
    logging.info: logging.INFO,
    logging.warning: logging.WARNING,
    logging.error: logging.ERROR,
    logging.critical: logging.CRITICAL,
}
LOGGER_METHODS = frozenset(method.__name__ for method in LEVELS)  # names of methods of loggers
STREAM_METHODS = frozenset({"write", "writelines", "flush"})  # names of methods of streams
UNKNOWN_STATE_EDGE = "input and output: the string of an object of class {} is not computed again"


@lookaside(print)
def print_later(run: TracedRun, /, *args: Any, **kwargs: Any) -> NotTaken | None:
    """Log a `print` to a stream of the process as an effect.

    Return `NOT_TAKEN` for other files. Then a file that the program has created receives the text at once, and a file
    from outside is reported as a sharp edge.
    """
    stream = kwargs.get("file")
    target = sys.stdout if stream is None else stream
    if not is_stream(run, target, named=stream is not None):
        if run.outside.path_of(target) is not None:
            run.note_edge("input and output: print to a file from outside", loud=True)
        if stream is None and target is not None:  # the methods of the file are interpreted
            return run.machine.call(print, *args, **{**kwargs, "file": target})  # type: ignore[no-any-return]
        return NOT_TAKEN
    run.output.streams.append(target)
    run.outside.effects.note_print(tuple(snapshot_or_text(run, arg) for arg in args), kwargs)
    return None


def method_of_stream(run: TracedRun, method: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Log `write`, `writelines` or `flush` of a process's stream as an effect."""
    if type(method) is not BuiltinMethodType or method.__name__ not in STREAM_METHODS or kwargs:
        return NOT_TAKEN
    stream, name = method.__self__, method.__name__
    path = run.outside.path_of(stream)
    if path is None or not is_stream(run, stream, named=True):
        return NOT_TAKEN
    if name == "writelines":
        return _write_lines(run, method, path, *args)
    run.outside.effects.note_stream_write(path, name, args)
    return len(args[0]) if name == "write" else None


def _write_lines(run: TracedRun, method: object, path: Path, /, lines: object) -> None:
    texts = run.machine.call(list, lines)
    if not all(isinstance(text, str) for text in texts):
        run.machine.call_unreported(method, (texts,), {})
    for text in texts:
        run.outside.effects.note_stream_write(path, "write", (text,))


def is_stream(run: TracedRun, stream: object, *, named: bool) -> bool:
    """Whether a stream is one of the process's streams from before the program, with a path to it if `named`.

    Output to other streams, such as a `StringIO`, may be read by the program.
    """
    return run.process_before.has_stream(stream) and (not named or run.outside.path_of(stream) is not None)


@lookaside_of_each(*LEVELS, *ROOT_LEVELS)
def log_later(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> NotTaken | None:
    """Log a message as an effect if its logger is enabled for that level; otherwise, guard that it is not."""
    level = ROOT_LEVELS.get(function) or LEVELS[function]
    logger, words = (logging.root, args) if function in ROOT_LEVELS else (args[0], args[1:])
    if kwargs or not words or type(logger) not in (logging.Logger, logging.RootLogger):
        run.note_edge(f"input and output: logging of {', '.join(kwargs) or 'a custom logger'}", loud=True)
        return NOT_TAKEN
    adds_handler = function in ROOT_LEVELS and not logger.handlers  # also for a level that is not enabled
    if not logger.isEnabledFor(level) and not adds_handler:
        run.settings.answers[f"logging.getLogger({logger.name!r}).isEnabledFor({level})"] = False
        return None
    require_known_handlers(run, logger)
    source = run.location().source
    where = ("<thunder>", 0, "")
    if source is not None:
        where = (source.filename, source.lineno, source.function.rpartition(".")[2])
    texts = [snapshot_or_text(run, word) for word in words]
    if function in ROOT_LEVELS:
        run.outside.effects.add_epilogue_call(log_by_function, (level, where, *texts))
    else:
        run.outside.effects.add_epilogue_call(log, (logger.name, level, where, *texts))
    return None


def require_known_handlers(run: TracedRun, logger: logging.Logger) -> None:
    """Request that eager PyTorch makes the call if the user's own code handles the messages of a logger."""
    is_own = run.settings.answers[f"logs_to_own_code({logger.name!r})"] = logs_to_own_code(logger.name)
    if is_own:
        run.leave_to_eager("the program logs to a handler or filter of the user's own code", FIX_FOR_LOGS)
    run.output.log_handlers.extend(handlers_of(logger))


@lookaside_of_each(logging.Logger.isEnabledFor, logging.Logger.getEffectiveLevel, logging.Logger.hasHandlers)
def ask_logger(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Return a setting of a logger, such as its effective level, and guard it."""
    if not args or kwargs or not all(map(is_constant, args[1:])) or logging.getLogger(args[0].name) is not args[0]:
        return NOT_TAKEN
    answer = function(*args)
    question = f"logging.getLogger({args[0].name!r}).{function.__name__}({', '.join(map(repr, args[1:]))})"
    run.settings.answers[question] = answer
    return answer


def method_that_logs_once(run: TracedRun, method: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a logger's method that logs each message once, with `functools.lru_cache`, as an effect.

    The epilogue calls the method, so that the method's cache decides whether the message was logged already.
    """
    logger: Any = callable_attribute(method, "__self__")
    function: Any = callable_attribute(method, "__func__")
    if type(logger) is not logging.Logger or not logs_once(function) or logging.getLogger(logger.name) is not logger:
        return NOT_TAKEN
    if kwargs or not all(is_constant(arg) or type(arg) is SymbolicText for arg in args):
        return run.machine.call_cached(function, (logger, *args), kwargs)
    require_known_handlers(run, logger)
    run.outside.effects.add_epilogue_call(log_once, (logger.name, function.__name__, args))
    return None


def logs_once(function: object) -> bool:
    """Whether a function is a cached method added to all loggers, which only logs messages not logged before."""
    if not isinstance(function, _lru_cache_wrapper):
        return False
    code = getattr(function.__wrapped__, "__code__", None)
    name = callable_name(function)
    return code is not None and logging.Logger.__dict__.get(name) is function and set(code.co_names) <= LOGGER_METHODS


def snapshot_or_text(run: TracedRun, value: object) -> Any:
    """Return a copy of a value for the epilogue to print later, or the value's text if the value cannot be copied."""
    try:
        return copy_for_output(run, value, {})
    except NotShownError:
        if is_native(type(value)):
            run.note_edge(UNKNOWN_STATE_EDGE.format(type(value).__name__), loud=True)
        return run.machine.call(str, value)
