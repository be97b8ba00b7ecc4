"""Finalizers of objects: Python keeps those of `weakref` in a registry, and calls `__del__` when an object ends."""

from __future__ import annotations

import weakref
from types import FunctionType
from typing import Any

from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.outside.sharp import is_users_code
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.lookup import type_lookup


@lookaside(weakref.finalize)
def finalize(run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Leave a finalizer to eager PyTorch, which would be registered while tracing, with tensors that have no data.

    Finalizers of libraries (such as those of `torch.library`) belong to the library and are registered once.
    """
    frame = run.machine.frame
    if frame is None or is_users_code(frame.code):
        run.leave_to_eager(
            "the program creates a `weakref.finalize`, which cannot be registered again at each call",
            "register it outside the compiled program, or keep a `weakref.ref` with a callback",
        )
    return run.machine.call_uninterpreted(weakref.finalize, args, kwargs)


def require_no_finalizer(run: TracedRun, kind: type) -> None:
    """Leave a program to eager PyTorch that creates an object whose class has a `__del__` of the user.

    Objects that tracing creates end at another time than those of eager PyTorch.
    """
    finalizer = type_lookup(kind, "__del__")
    if isinstance(finalizer, FunctionType) and is_users_code(finalizer.__code__):
        run.leave_to_eager(
            f"the program creates a {kind.__name__}, whose `__del__` runs when the object ends",
            "create the object outside the compiled program",
        )
