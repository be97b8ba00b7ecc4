"""`warnings.warn` of the program: the epilogue warns at each call, with the values and filters of that call."""

from __future__ import annotations

import builtins
import warnings
from collections.abc import Callable
from typing import Any

from thunder_core.frontend.acquire.lookasides.state.output import as_now
from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.builtin.warning import LocatedWarning, locate_warning
from thunder_core.tracing.capture.torch_facts.texts import SymbolicText
from thunder_core.tracing.library.output import raises_warning, warn


@lookaside(warnings.warn)
def warn_later(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Warn as an effect if the caller's warning filters are active, and guard whether the filters raise an error.

    A warning that is raised, that the program catches, or that has a class of the user is issued only while tracing.
    """
    if warnings.filters is not acquisition.warning_filters:
        return None
    located = locate_warning(acquisition.machine, args, kwargs)
    if located is None or located.source is not None or not is_replayable(located):
        return None
    category, module, line = located.category, located.module, located.line
    message = located.message
    text = message if type(message) is str else None
    if text is None and raises_warning(None, category, module, line) is None:
        text = message.concretize()
    question = f"raises_warning({text!r}, {category.__name__}, {module!r}, {line})"
    answer = acquisition.settings.asked[question] = raises_warning(text, category, module, line)
    if answer:
        return None

    def run(*_: Any, **__: Any) -> None:
        where = (located.filename, line, module)
        acquisition.outside.effects.calls(warn, (category.__name__, where, as_now(acquisition, message)))

    return run


def is_replayable(located: LocatedWarning) -> bool:
    """Whether the message of a warning is a string, and its class is one of Python's own."""
    is_text = type(located.message) in (str, SymbolicText)
    return is_text and getattr(builtins, located.category.__name__, None) is located.category
