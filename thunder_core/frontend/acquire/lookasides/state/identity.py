"""`id`: a program that reads an object's identity is valid only for that object."""

from __future__ import annotations

import copy
from typing import Any

from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.outside.guards.values import Identical
from thunder_core.frontend.acquire.traced_run import TracedRun


@lookaside(id)
def identify(run: TracedRun, /, *args: Any) -> Any:
    """Guard the identity of the object, if the object comes from outside.

    For calls from Python's module `copy`, guard only which objects are the same, because copies share objects in the
    same way.
    """
    frame = run.machine.frame
    is_of_copy = frame is not None and frame.globals is vars(copy)
    path = run.outside.path_of(args[0]) if len(args) == 1 else None
    if path is not None and is_of_copy:
        run.outside.note_identity_read(args[0])
    elif path is not None and path.parent is not None:
        run.outside.guard(Identical(path, args[0]))
    return run.machine.call_uninterpreted(id, args, {})
