"""Finalizers of objects, which keep a register of their own."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.outside.sharp import is_users_code
from thunder_core.frontend.acquire.traced_run import TracedRun


@lookaside(weakref.finalize)
def finalize(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """A finalizer would be registered while tracing, with tensors that have no data: it is refused.

    Those of libraries (of what `torch.library` registers) are theirs, and are registered once.
    """
    frame = acquisition.machine.frame
    if frame is not None and not is_users_code(frame.code):
        return function
    return lambda *args, **kwargs: acquisition.refuse(
        "the program makes a `weakref.finalize`, which cannot be registered again at each call",
        fix="register it outside the compiled program, or keep a `weakref.ref` with a callback",
    )
