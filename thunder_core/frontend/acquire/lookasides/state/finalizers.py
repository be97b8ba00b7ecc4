"""Finalizers of objects, which Python keeps in a registry."""

from __future__ import annotations

import weakref
from typing import Any

from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.outside.sharp import is_users_code
from thunder_core.frontend.acquire.traced_run import TracedRun


@lookaside(weakref.finalize)
def finalize(run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Refuse a finalizer, which would be registered while tracing, with tensors that have no data.

    Finalizers of libraries (such as those of `torch.library`) belong to the library and are registered once.
    """
    frame = run.machine.frame
    if frame is not None and not is_users_code(frame.code):
        return run.machine.call_uninterpreted(weakref.finalize, args, kwargs)
    return run.refuse(
        "the program creates a `weakref.finalize`, which cannot be registered again at each call",
        fix="register it outside the compiled program, or keep a `weakref.ref` with a callback",
    )
