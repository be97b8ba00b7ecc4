"""Messages of loguru's loggers: the epilogue logs them at each call, with the values and the time of that call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder_core.frontend.acquire.lookaside_table import late_lookaside
from thunder_core.frontend.acquire.lookasides.state.output import snapshot_or_text
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken
from thunder_core.tracing.library.output import log_with_loguru

# The options of a logger, in the order of the tuple `Logger._options`.
OPTIONS = ("exception", "depth", "record", "lazy", "colors", "raw", "capture", "patchers", "extra")
REPLAYED = frozenset({"colors", "raw", "capture", "extra"})  # options with which the epilogue can log a message
OPTION_FIX = "log the message without `logger.opt`, `logger.patch` and `logger.catch`, or outside the compiled program"


@late_lookaside("loguru._logger:Logger._log")
def log_later(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> NotTaken | None:
    """Let the epilogue log a message, with the line that calls the logger's method as its origin.

    If an option makes the message depend on an exception, a function or another frame, the program is left to eager
    PyTorch.
    """
    del function
    frame = run.machine.frame.caller if run.machine.frame is not None else None
    if kwargs or len(args) != 7 or frame is None:
        return NOT_TAKEN
    logger, level, from_decorator, options, message, words, named = args
    set_options = dict(zip(OPTIONS, options, strict=False))
    used = [name for name, value in set_options.items() if value and name not in REPLAYED]
    if used or from_decorator or len(options) != len(OPTIONS):
        run.leave_to_eager(f"a message of loguru has options ({', '.join(used) or 'catch'})", OPTION_FIX)
    where = (frame.code.co_filename, frame.lineno, frame.code.co_name, frame.globals.get("__name__"))
    texts = tuple(snapshot_or_text(run, word) for word in (message, *words))
    values = {name: snapshot_or_text(run, value) for name, value in named.items()}
    run.outside.effects.add_epilogue_call(log_with_loguru, (logger, level, options, where, texts, values))
    return None
