"""C code that changes containers passed to it, such as counting in `collections.Counter`."""

from __future__ import annotations

import collections
from collections.abc import Iterable, MutableMapping
from types import FunctionType
from typing import Any, cast

from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN


@lookaside(collections._count_elements)  # type: ignore[attr-defined]
def count_elements(run: TracedRun, /, *args: Any) -> Any:
    """Interpret counting into a mapping from outside, because each write to the mapping is an effect."""
    if not args or run.outside.path_of(args[0]) is None:
        return NOT_TAKEN
    return run.machine.call_function(cast(FunctionType, count), args, {})


def count(mapping: MutableMapping[Any, int], iterable: Iterable[Any]) -> None:
    """Count the items of an iterable, as the Python version in CPython's `collections` does."""
    get = mapping.get
    for item in iterable:
        mapping[item] = get(item, 0) + 1
