"""Calls of pickle's C functions, which find functions by name: eager PyTorch makes a call that runs the user's code."""

from __future__ import annotations

import _pickle
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

from thunder_core.frontend.acquire.outside.native_reads import owner_and_name
from thunder_core.frontend.acquire.outside.sharp import is_users_code
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.ir.retrace import Retrace

FIX = "pickle or unpickle outside the compiled program, or use `copy.deepcopy`"
NAMES = frozenset({"dump", "dumps", "load", "loads"})
FUNCTIONS = (_pickle.dump, _pickle.dumps, _pickle.load, _pickle.loads)
Result = TypeVar("Result")


def pickles(function: Any, args: tuple[Any, ...]) -> bool:
    """Whether a C function pickles or unpickles objects."""
    owner, name = owner_and_name(function, args)
    return (
        function in FUNCTIONS
        if owner is None
        else name in NAMES and issubclass(type(owner), _pickle.Pickler | _pickle.Unpickler)
    )


def refuse_users_code(run: TracedRun, call: Callable[[], Result]) -> Result:
    """Make a call of C code, and leave it to eager PyTorch if the C code is about to run code of the user natively.

    The interpreter runs the methods of the objects and of the pickler that the call receives. The C code also calls
    functions that the pickle or the table of `copyreg` names, such as the `__setstate__` of a class. A profiler of the
    user has the place of the function that finds these calls, so eager PyTorch makes all such calls under a profiler.
    """
    if sys.getprofile() is not None:
        run.leave_to_eager("the program pickles or unpickles under a profiler", "pickle outside the compiled program")
    called: list[str] = []

    def refuse(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and is_users_code(frame.f_code):
            sys.setprofile(None)
            called.append(frame.f_code.co_qualname)
            run.leave_to_eager(reason(called), FIX)

    sys.setprofile(refuse)
    try:
        with ignored_requests():
            result = call()
    finally:
        sys.setprofile(None)
    if called:  # Python has ignored the request, as it ignores errors of a `__del__`
        run.leave_to_eager(reason(called), FIX)
    return result


@contextmanager
def ignored_requests() -> Iterator[None]:
    """In the block, print no message for a request that Python ignores, because it was raised in a `__del__`."""
    hook = sys.unraisablehook

    def print_others(ignored: Any) -> None:
        if not isinstance(ignored.exc_value, Retrace):
            hook(ignored)

    sys.unraisablehook = print_others
    try:
        yield
    finally:
        sys.unraisablehook = hook


def reason(called: list[str]) -> str:
    """Return why eager PyTorch makes a call during which functions of these names were called."""
    return f"pickle calls `{called[0]}`, which is not traced"
