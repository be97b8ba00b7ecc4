"""Code that runs when an object dies, and reads of weak references to objects that tracing keeps alive."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any

import torch

from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import ThunderError
from thunder_core.frontend.acquire.held_objects import is_held
from thunder_core.frontend.acquire.lookasides.table import lookaside, lookaside_of_each
from thunder_core.frontend.acquire.outside.call_traits import dereferenced_reference
from thunder_core.frontend.acquire.outside.reductions import DeferredCallback
from thunder_core.frontend.acquire.outside.sharp import is_users_code
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.ir.retrace import Retrace

KEEP_THE_TENSOR = "keep the tensor in a variable, or make the weak reference outside the compiled program"


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
    if is_computed(run, referent):
        run.leave_to_eager("a weak reference to a computed tensor has a callback", KEEP_THE_TENSOR)
    deferred = DeferredCallback(callback, partial(note_death, run.machine, run))
    return run.machine.call_unreported(function, (referent, deferred), {})


def dereference(run: TracedRun, function: Any, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> Any:
    """Leave a program to eager PyTorch that reads a weak reference to a computed tensor which may have died.

    Tracing refers to all computed tensors. If no variable of the program refers to such a tensor, it may be alive only
    because of tracing.
    """
    reference = dereferenced_reference(function)
    referent = None if reference is None else weakref.ref.__call__(reference)
    if is_computed(run, referent) and not is_held(run.machine.frame, referent):
        run.leave_to_eager(
            "the program reads a weak reference to a computed tensor, which may be dead", KEEP_THE_TENSOR
        )
    return NOT_TAKEN


def is_computed(run: TracedRun, value: object) -> bool:
    """Whether a value is a tensor that the program has computed."""
    return isinstance(value, torch.Tensor) and not run.recorder.tensors.is_outside(value)


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
            f"the program creates {object_of_class(kind)}, whose `__del__` runs when the object ends",
            "create the object outside the compiled program",
        )
