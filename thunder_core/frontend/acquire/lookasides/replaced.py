"""Calls of functions that the user's lookasides replace."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

from thunder_core.backend.runtime.module import compiled_of
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.extension.lookaside import Lookaside


class Replacements:
    """The lookasides of one compiler, by the functions whose calls they replace."""

    def __init__(self, lookasides: Sequence[Lookaside] = ()) -> None:
        self._lookasides = {lookaside.function: lookaside for lookaside in lookasides}
        self._passed: Lookaside | None = None  # whose function is called next as it is
        self.were_called = False

    def of(self, acquisition: TracedRun, function: Any) -> Callable[..., Any] | None:
        """The function that is called in place of this one, with the same arguments; None for the function itself."""
        for target, owner in targets_of(function):
            lookaside = self._lookasides.get(target)
            if lookaside is None:
                continue
            if lookaside is self._passed:
                self._passed = None
                return None
            if is_within(acquisition.machine.frame, lookaside):
                return None
            return functools.partial(self._call, acquisition, lookaside, function, owner)
        return None

    def _call(
        self,
        acquisition: TracedRun,
        lookaside: Lookaside,
        function: Any,
        owner: tuple[Any, ...],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Call the replacement, or the function itself where the lookaside's condition does not hold."""
        machine, self.were_called = acquisition.machine, True
        if lookaside.when is not None:
            acquisition.outside.root("lookaside", "condition", lookaside.when)
            if not machine.call(bool, machine.call(lookaside.when, *owner, *args, **kwargs)):
                self._passed = lookaside
                return machine.call(function, *args, **kwargs)
        acquisition.outside.root("lookaside", "replacement", lookaside.replacement)
        return machine.call(lookaside.replacement, *owner, *args, **kwargs)

    def __bool__(self) -> bool:
        return bool(self._lookasides)


def targets_of(function: Any) -> list[tuple[Any, tuple[Any, ...]]]:
    """The functions by which a lookaside may name this call, each with its first arguments: a method's object."""
    targets: list[tuple[Any, tuple[Any, ...]]] = []
    try:
        hash(function)
    except TypeError:
        return targets
    targets.append((function, ()))
    if type(function) is MethodType:
        targets.append((function.__func__, (function.__self__,)))
    elif type(function) is BuiltinMethodType and not isinstance(function.__self__, type | None):
        of_class = getattr(type(function.__self__), function.__name__, None)
        if of_class is not None and getattr(of_class, "__objclass__", None) is not None:
            targets.append((of_class, (function.__self__,)))
    return targets


def is_within(frame: Any, lookaside: Lookaside) -> bool:
    """Whether a frame is, or was called by, the replacement, and the original has not been called since."""
    replacement, original = code_of(lookaside.replacement), code_of(lookaside.function)
    while frame is not None:
        if frame.function is not None and frame.function is replacement:
            return True
        if frame.function is not None and frame.function is original:
            return False
        frame = frame.caller
    return False


def code_of(function: Any) -> FunctionType | None:
    """The function of Python whose frame a call of this one makes; None where there is none."""
    while type(function) is functools.partial:
        function = function.func
    if type(function) is MethodType:
        function = function.__func__
    if type(function) is not FunctionType:
        function = getattr(type(function), "__call__", None)  # noqa: B004 - its function, which is compared
    compiled = compiled_of(function)
    function = function if compiled is None else compiled.subject
    return function if type(function) is FunctionType else None
