"""Code that runs when an object dies: finalizers of `weakref`, callbacks of weak references, and `__del__`."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

from thunder_core.foundation.errors import ThunderError
from thunder_core.frontend.acquire.lookasides.table import lookaside, lookaside_of_each
from thunder_core.frontend.acquire.outside.reductions import DeferredCallback
from thunder_core.frontend.acquire.outside.sharp import is_users_code
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.ir.retrace import Retrace


@lookaside(weakref.finalize)
def finalize(run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Leave the program to eager PyTorch, because it creates a finalizer.

    Tracing would register the finalizer with tensors that have no data. Finalizers that libraries create, such as those
    of `torch.library`, are registered once, while tracing.
    """
    frame = run.machine.frame
    if frame is None or is_users_code(frame.code):
        run.leave_to_eager(
            "the program creates a `weakref.finalize`, which cannot be registered again at each call",
            "register it outside the compiled program, or keep a `weakref.ref` with a callback",
        )
    return run.machine.call_uninterpreted(weakref.finalize, args, kwargs)


@lookaside_of_each(weakref.ref, weakref.proxy)
def refer_weakly(function: Callable[..., Any], run: TracedRun, /, *args: Any) -> Any:
    """Make a weak reference whose callback is not called while tracing.

    If the object dies in the program, eager PyTorch makes the calls, because no line of a trace is at that position.
    """
    frame = run.machine.frame
    if len(args) != 2 or args[1] is None or frame is None or not is_users_code(frame.code):
        return NOT_TAKEN
    referent, callback = args
    deferred = DeferredCallback(callback, partial(note_death, run.machine, run))
    return run.machine.natively(function, (referent, deferred), {})


def note_death(machine: Any, run: TracedRun) -> None:
    """Leave the program to eager PyTorch, because an object with a weak reference and its callback was freed.

    A callback cannot raise the error to the program, so the run stores the request until the program ends.
    """
    if not machine.is_over:
        with contextlib.suppress(Retrace, ThunderError):
            run.leave_to_eager(
                "an object dies in the program, and one of its weak references has a callback",
                "keep the object alive, or make the weak reference without a callback",
            )


def require_no_finalizer(run: TracedRun, kind: type) -> None:
    """Leave the program to eager PyTorch if it creates an object of a class with the user's own `__del__`.

    While tracing, objects are freed at other times than in eager PyTorch.
    """
    finalizer = type_lookup(kind, "__del__")
    if isinstance(finalizer, FunctionType) and is_users_code(finalizer.__code__):
        run.leave_to_eager(
            f"the program creates a {kind.__name__}, whose `__del__` runs when the object ends",
            "create the object outside the compiled program",
        )
