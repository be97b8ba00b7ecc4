"""Checks of the trace that a transform returns: an invalid trace is reported as an error of the transform."""

from __future__ import annotations

from collections.abc import Callable

from thunder_core.foundation.errors import BadRecipe, InternalError
from thunder_core.tracing.extension.authorship import is_ours, line_of, require_return_type
from thunder_core.tracing.ir.check import check_trace
from thunder_core.tracing.ir.trace import Trace


def checked_trace(transform: Callable[[Trace], Trace], result: object) -> Trace:
    """Return the trace that a transform returned.

    Raises `BadRecipe` if the transform is the user's and the trace is invalid.
    """
    transform = getattr(transform, "stands_for", transform)
    trace: Trace = require_return_type(transform, "__call__", result, Trace)
    try:
        return check_trace(trace)
    except InternalError as error:
        if is_ours(transform):
            raise
        name = type(transform).__name__
        raise BadRecipe(
            f"the transform {name} returned a trace that cannot run: {error.what}",
            fix="define each name of the trace exactly once, before it is read",
            where=line_of(type(transform).__call__),
        ) from error
