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
        self._passed: Lookaside | None = None  # the lookaside whose function is called unchanged next
        self.were_called = False

    def of(self, acquisition: TracedRun, function: Any) -> Callable[..., Any] | None:
        """Return the replacement to call with the same arguments; None if `function` itself should be called."""
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
        """Call the replacement, or the original function if the lookaside's condition does not hold."""
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
    """List the functions that a lookaside may name for this call, each with its bound first arguments."""
    targets: list[tuple[Any, tuple[Any, ...]]] = []
    try:
        hash(function)
    except TypeError:
        return targets
    targets.append((function, ()))
    if type(function) is MethodType:
        targets.append((function.__func__, (function.__self__,)))
    elif type(function) is BuiltinMethodType and not isinstance(function.__self__, type | None):
        unbound = getattr(type(function.__self__), function.__name__, None)
        if unbound is not None and getattr(unbound, "__objclass__", None) is not None:
            targets.append((unbound, (function.__self__,)))
    return targets


def is_within(frame: Any, lookaside: Lookaside) -> bool:
    """Whether a frame runs in a call of the replacement, without a call of the original function in between."""
    replacement, original = code_of(lookaside.replacement), code_of(lookaside.function)
    while frame is not None:
        if frame.function is not None and frame.function is replacement:
            return True
        if frame.function is not None and frame.function is original:
            return False
        frame = frame.caller
    return False


def code_of(function: Any) -> FunctionType | None:
    """Return the Python function whose frame a call of `function` creates; None if there is none."""
    while type(function) is functools.partial:
        function = function.func
    if type(function) is MethodType:
        function = function.__func__
    if type(function) is not FunctionType:
        function = getattr(type(function), "__call__", None)  # noqa: B004 - only compared
    compiled = compiled_of(function)
    function = function if compiled is None else compiled.subject
    return function if type(function) is FunctionType else None
