"""The result of a transform, checked: a trace that cannot run is the fault of whoever wrote the transform."""

from __future__ import annotations

from collections.abc import Callable

from thunder_core.foundation.errors import BadRecipe, InternalError
from thunder_core.tracing.extension.authorship import checked_return, is_ours, line_of
from thunder_core.tracing.ir.check import check_trace
from thunder_core.tracing.ir.trace import Trace


def checked_trace(transform: Callable[[Trace], Trace], result: object) -> Trace:
    """The trace that a transform returned; raises `BadRecipe` for what is none, or cannot run, of somebody else's."""
    transform = getattr(transform, "stands_for", transform)
    trace: Trace = checked_return(transform, "__call__", result, Trace)
    try:
        return check_trace(trace)
    except InternalError as error:
        if is_ours(transform):
            raise
        name = type(transform).__name__
        raise BadRecipe(
            f"the transform {name} returned a trace that cannot run: {error.what}",
            fix="each name of a trace has to be defined before it is read, and once",
            where=line_of(type(transform).__call__),
        ) from error
