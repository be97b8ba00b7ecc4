"""`id`: a program that reads an object's identity is valid only for that object."""

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
    """Guard the identity of the object, if the object comes from outside.

    Python's `copy` only uses `id` to tell objects apart, so its calls add no guard here.
    """
    frame = acquisition.machine.frame
    if frame is not None and frame.globals is vars(copy):
        return function
    path = acquisition.outside.path_of(args[0]) if len(args) == 1 else None
    if path is not None and path.parent is not None:
        acquisition.outside.guard(Identical(path, args[0]))
    return function
