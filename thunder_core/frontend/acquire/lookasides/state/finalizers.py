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
from thunder_core.frontend.acquire.lookaside_table import lookaside, lookaside_of_each
from thunder_core.frontend.acquire.outside.call_traits import dereferenced_reference
from thunder_core.frontend.acquire.outside.reductions import DeferredCallback
from thunder_core.frontend.acquire.outside.sharp import is_users_code
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.calls import issubclass_natively
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.ir.retrace import Retrace

KEEP_THE_TENSOR = "keep the tensor in a variable until the weak reference is read"
REFER_AFTER_THE_CALL = "return the tensor, and make the weak reference after the call"


@lookaside(weakref.finalize)
def finalize(run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """If the user's code creates a finalizer, leave the call to eager PyTorch.

    A trace cannot register a finalizer at each call. Finalizers that libraries create, such as those of
    `torch.library`, are registered once, while tracing.
    """
    frame = run.machine.frame
    if frame is None or is_users_code(frame.code):
        run.leave_to_eager(
            "the program creates a `weakref.finalize`, which cannot be registered again at each call",
            "register it outside the compiled program",
        )
    return run.machine.call_uninterpreted(weakref.finalize, args, kwargs)


@lookaside_of_each(weakref.ref, weakref.proxy, weakref.WeakMethod)
def refer_weakly(function: Callable[..., Any], run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Make a weak reference whose callback is not called while tracing.

    If the object dies before the program ends, eager PyTorch runs this call and later calls, because a trace cannot
    call the callback at the moment of the object's death. This concerns only the user's code, and not libraries.
    """
    frame = run.machine.frame
    if not args or kwargs or frame is None or not is_users_code(frame.code):
        return NOT_TAKEN
    if function is weakref.proxy and is_computed(run, args[0]):
        run.leave_to_eager("the program makes a `weakref.proxy` of a computed tensor", REFER_AFTER_THE_CALL)
    return _refer(run, partial(run.machine.call_unreported, function), (), args)


@lookaside(weakref.ref.__new__)
def make_reference(run: TracedRun, /, *args: Any, **kwargs: Any) -> Any:
    """Make a weak reference of the user's subclass of `weakref.ref`, as `refer_weakly` does."""
    frame = run.machine.frame
    if len(args) < 2 or kwargs or frame is None or not is_users_code(frame.code):
        return NOT_TAKEN
    return _refer(run, partial(run.machine.call_unreported, weakref.ref.__new__), args[:1], args[1:])


def _refer(run: TracedRun, call: Callable[..., Any], kind: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    """Make a weak reference with a deferred callback; `args` are the referent and the callback, if there is one."""
    if len(args) != 2 or args[1] is None:
        return NOT_TAKEN
    referent, callback = args
    if is_computed(run, referent):
        run.leave_to_eager("a weak reference to a computed tensor has a callback", REFER_AFTER_THE_CALL)
    deferred = DeferredCallback(callback, partial(note_death, run.machine, run))
    return call((*kind, referent, deferred), {})


def dereference(run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Leave the call to eager PyTorch if the program reads a weak reference to a tensor that may be dead there.

    The call of a subclass of `weakref.ref` makes a reference, as in `refer_weakly`.

    Tracing refers to all computed tensors. If no variable of the program refers to such a tensor, it may be alive only
    because of tracing.
    """
    if isinstance(function, type):
        return refer_weakly(function, run, *args, **kwargs) if _makes_reference(function) else NOT_TAKEN
    reference = dereferenced_reference(function)
    referent = None if reference is None else weakref.ref.__call__(reference)
    if is_computed(run, referent) and not is_held(run.machine.frame, referent):
        run.leave_to_eager(
            "the program reads a weak reference to a computed tensor that no variable refers to", KEEP_THE_TENSOR
        )
    return NOT_TAKEN


def _makes_reference(kind: type) -> bool:
    """Whether a class is a subclass of `weakref.ref` whose instances are made and initialized by C code."""
    is_reference = issubclass_natively(kind, weakref.ref)
    return is_reference and not any(type(type_lookup(kind, name)) is FunctionType for name in ("__new__", "__init__"))


def is_computed(run: TracedRun, value: object) -> bool:
    """Whether a value is a tensor that the program has computed."""
    return isinstance(value, torch.Tensor) and not run.recorder.tensors.is_outside(value)


def note_death(machine: Any, run: TracedRun) -> None:
    """Leave the call to eager PyTorch, because an object died whose weak reference has a callback.

    Python ignores errors in callbacks, so the run stores the request, and handles it when the program ends.
    """
    if not machine.is_over:
        with contextlib.suppress(Retrace, ThunderError):
            run.leave_to_eager(
                "an object dies in the program, and one of its weak references has a callback",
                "keep the object alive, or make the weak reference without a callback",
            )


def require_no_del_method(run: TracedRun, kind: type) -> None:
    """Leave the program to eager PyTorch if it creates an object of a class with the user's own `__del__`.

    While tracing, objects die at other times than in eager PyTorch.
    """
    finalizer = type_lookup(kind, "__del__")
    if isinstance(finalizer, FunctionType) and is_users_code(finalizer.__code__):
        run.leave_to_eager(
            f"the program creates {object_of_class(kind)}, whose `__del__` runs when the object dies",
            "create the object outside the compiled program",
        )
