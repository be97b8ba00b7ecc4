"""The loop that traces a program until an attempt succeeds, with other options after each failed attempt."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from thunder_core.tracing.ir.retrace import Retrace

Options = TypeVar("Options")
Result = TypeVar("Result")


def retrace(
    attempt: Callable[[Options], Result],
    options: Options,
    after: Callable[[Options, BaseException], Options | None],
) -> Result:
    """Return the result of the first attempt that succeeds.

    `after(options, error)` returns the options of the next attempt, or None if this function must raise the error.
    """
    while True:
        try:
            return attempt(options)
        except (Exception, Retrace) as error:
            following = after(options, error)
            if following is None:
                raise
        options = following
