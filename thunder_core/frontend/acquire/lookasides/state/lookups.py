"""Lookups of symbolic numbers in containers.

A guard requires that the number equals a key, or equals none of the keys, as guards of comparisons do. So there is one
program for each key, and one program for all numbers that are not keys. If the container hashed the number instead, its
value would be guarded, and each value would need its own program.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any

from thunder_core.frontend.acquire.lookaside_table import lookaside_of_each
from thunder_core.frontend.acquire.run.lookups import NUMBERS
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber


@lookaside_of_each(bisect.bisect_left, bisect.bisect_right)
def search(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> int | NotTaken:
    """Find the position of a symbolic number in a sorted list by comparisons, whose outcomes are guarded."""
    if len(args) != 2 or kwargs or type(args[0]) not in (list, tuple):
        return NOT_TAKEN
    items, value = args
    if not any(isinstance(item, SymbolicNumber) for item in (value, *items)):
        return NOT_TAKEN
    if not all(isinstance(item, SymbolicNumber) or type(item) in NUMBERS for item in (value, *items)):
        return NOT_TAKEN  # the interpreter must run the comparisons of other classes
    run.outside.expand(items)
    low, high = 0, len(items)
    while low < high:
        middle = (low + high) // 2
        # Each function makes its own comparison, because all comparisons with NaN are false.
        is_behind = items[middle] < value if function is bisect.bisect_left else not value < items[middle]
        if is_behind:
            low = middle + 1
        else:
            high = middle
    return low
