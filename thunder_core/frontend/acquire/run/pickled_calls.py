"""Calls of pickle's C functions, which find functions by name: eager PyTorch makes a call that runs the user's code."""

from __future__ import annotations

import _pickle
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from thunder_core.frontend.acquire.outside.native_reads import owner_and_name
from thunder_core.frontend.acquire.outside.sharp import is_users_code
from thunder_core.frontend.acquire.traced_run import TracedRun

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
    user stays active, so these functions then run natively.
    """
    if sys.getprofile() is not None:
        return call()

    def refuse(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and is_users_code(frame.f_code):
            sys.setprofile(None)
            run.leave_to_eager(f"pickle calls `{frame.f_code.co_qualname}`, which is not traced", FIX)

    sys.setprofile(refuse)
    try:
        return call()
    finally:
        sys.setprofile(None)
