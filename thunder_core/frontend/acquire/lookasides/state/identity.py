"""`id`: a program that asks for an object's identity is for that object alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.outside.guards import Identical
from thunder_core.frontend.acquire.traced_run import TracedRun


@lookaside(id)
def identify(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Guard that the object is the same one, if it comes from outside.

    Python's `copy` only tells objects from each other by it, which is guarded for all identities that are taken.
    """
    frame = acquisition.machine.frame
    if frame is not None and frame.globals is vars(copy):
        return function
    path = acquisition.outside.path_of(args[0]) if len(args) == 1 else None
    if path is not None and path.parent is not None:
        acquisition.outside.guard(Identical(path, args[0]))
    return function
