"""`warnings.warn` of the program: the epilogue warns at each call, with the values and filters of that call."""

from __future__ import annotations

import builtins
import warnings
from types import FunctionType, MethodType
from typing import Any

import torch

from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.lookasides.state.output import snapshot_or_text
from thunder_core.frontend.acquire.outside.sharp import is_users_code
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.builtin.warning import LocatedWarning, locate_warning
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken
from thunder_core.tracing.capture.torch_facts.texts import SymbolicText
from thunder_core.tracing.library.output import raises_warning, raises_warning_of_caller, warn, warn_caller

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
    if raises(run, located):
        return NOT_TAKEN
    name, text = located.category.__name__, snapshot_or_text(run, located.message)
    if located.callers_level:
        run.outside.effects.add_epilogue_call(warn_caller, (name, callers_level(run, located), text))
    else:
        where = (located.filename, located.line, located.module)
        run.outside.effects.add_epilogue_call(warn, (name, where, text))
    return None


def raises(run: TracedRun, located: LocatedWarning) -> bool | None:
    """Guard and return whether the warning filters turn a warning into an error."""
    category, module, line, message = located.category, located.module, located.line, located.message
    text = message if type(message) is str else None
    if text is None and raises_warning(None, category, module, line) is None:
        text = message.concretize()
    if located.callers_level:
        level = callers_level(run, located)
        question = f"raises_warning_of_caller({text!r}, {category.__name__}, {level})"
        answer = raises_warning_of_caller(text, category, level)
    else:
        question = f"raises_warning({text!r}, {category.__name__}, {module!r}, {line})"
        answer = raises_warning(text, category, module, line)
    run.settings.answers[question] = answer
    return answer


def callers_level(run: TracedRun, located: LocatedWarning) -> int:
    """Return the level of the caller that a warning refers to.

    In eager PyTorch, two frames of `torch.nn.Module` call a module. A call of a compiled module has no such frames.
    """
    is_module = issubclass(type(run.inputs.subject), torch.nn.Module)
    return max(located.callers_level - 2, 1) if is_module else located.callers_level


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
