"""`warnings.warn` of the program: the epilogue warns at each call, with the values and filters of that call."""

from __future__ import annotations

import builtins
import warnings
from types import FunctionType, MethodType
from typing import Any

from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.lookasides.state.output import snapshot_or_text
from thunder_core.frontend.acquire.outside.sharp import is_users_code
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.builtin.warning import LocatedWarning, locate_warning
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken
from thunder_core.tracing.capture.torch_facts.texts import SymbolicText
from thunder_core.tracing.library.output import raises_warning, warn

FIX = "warn outside the compiled program, or use `warnings.catch_warnings(record=True)`"


@lookaside(warnings.warn)
def warn_later(run: TracedRun, /, *args: Any, **kwargs: Any) -> NotTaken | None:
    """Warn as an effect if the caller's warning filters are active, and guard whether the filters raise an error.

    A warning that is raised, that the program catches, or that has a class of the user is issued only while tracing.
    """
    show = warnings.showwarning
    if isinstance(show, FunctionType | MethodType) and is_users_code(show.__code__):
        run.leave_to_eager("the program warns, and `warnings.showwarning` is a function of the user", FIX)
    if warnings.filters is not run.process_before.warning_filters:
        return NOT_TAKEN
    located = locate_warning(run.machine, args, kwargs)
    if located is None or located.source is not None or not is_replayable(located):
        return NOT_TAKEN
    category, module, line = located.category, located.module, located.line
    message = located.message
    text = message if type(message) is str else None
    if text is None and raises_warning(None, category, module, line) is None:
        text = message.concretize()
    question = f"raises_warning({text!r}, {category.__name__}, {module!r}, {line})"
    answer = run.settings.answers[question] = raises_warning(text, category, module, line)
    if answer:
        return NOT_TAKEN
    where = (located.filename, line, module)
    run.outside.effects.add_epilogue_call(warn, (category.__name__, where, snapshot_or_text(run, message)))
    return None


@lookaside(warnings.simplefilter, warnings.filterwarnings, warnings.resetwarnings)
def change_filters(run: TracedRun, /, *_args: Any, **_kwargs: Any) -> NotTaken:
    """Change the filters of the program's own `warnings.catch_warnings`; leave other changes to eager PyTorch."""
    if warnings.filters is run.process_before.warning_filters:
        run.leave_to_eager(
            "the program changes the warning filters of the process",
            "change them outside the compiled program, or use `warnings.catch_warnings`",
        )
    return NOT_TAKEN


def is_replayable(located: LocatedWarning) -> bool:
    """Whether the message of a warning is a string, and its class is one of Python's own."""
    is_text = type(located.message) in (str, SymbolicText)
    return is_text and getattr(builtins, located.category.__name__, None) is located.category
