"""Context variables: their methods, and contexts that a program makes or copies."""

from __future__ import annotations

import contextvars
from typing import Any

from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.run.context_variables import ContextVariables
from thunder_core.frontend.acquire.traced_run import TracedRun


def method_of_context_variable(run: TracedRun, method: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a method of a context variable, or of a context that the program has copied."""
    variables: ContextVariables = run.context_variables
    return variables.call_method(method, args, kwargs)


@lookaside(contextvars.Context)
def make_context(run: TracedRun, /) -> contextvars.Context:
    """Return a new context, which belongs to the program."""
    variables: ContextVariables = run.context_variables
    return variables.make_context()


@lookaside(contextvars.copy_context)
def copy_context(run: TracedRun, /) -> contextvars.Context:
    """Copy the current context. The copy belongs to the program."""
    variables: ContextVariables = run.context_variables
    return variables.copy_current()
