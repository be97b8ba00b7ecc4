"""C code that changes containers passed to it, such as counting in `collections.Counter`."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, MutableMapping
from types import FunctionType
from typing import Any, cast

from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun


@lookaside(collections._count_elements)  # type: ignore[attr-defined]
def count_elements(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Interpret counting into a mapping from outside, because each write to the mapping is an effect."""
    counts_outside = bool(args) and acquisition.outside.path_of(args[0]) is not None
    return (
        (lambda *args: acquisition.machine.call_function(cast(FunctionType, count), args, {}))
        if counts_outside
        else None
    )


def count(mapping: MutableMapping[Any, int], iterable: Iterable[Any]) -> None:
    """Count the items of an iterable, as the Python version in CPython's `collections` does."""
    get = mapping.get
    for item in iterable:
        mapping[item] = get(item, 0) + 1
