"""Calls of functions that the user's lookasides replace."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

from thunder_core.backend.runtime.module import programs_of
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.callables import callable_attribute
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.extension.lookaside import Lookaside


class Replacements:
    """The lookasides of one compiler, by the functions whose calls they replace."""

    def __init__(self, lookasides: Sequence[Lookaside] = ()) -> None:
        self._lookasides = {lookaside.function: lookaside for lookaside in lookasides}
        self.were_called = False

    def call(self, run: TracedRun, function: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the replacement of a function, if there is one and its condition holds."""
        for target, owner in targets_of(function):
            lookaside = self._lookasides.get(target)
            if lookaside is None:
                continue
            if is_within(run.machine.frame, lookaside):
                return NOT_TAKEN
            return self._call(run, lookaside, (*owner, *args), kwargs)
        return NOT_TAKEN

    def _call(self, run: TracedRun, lookaside: Lookaside, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        machine = run.machine
        self.note_call()
        if lookaside.when is not None:
            run.outside.root("lookaside", "condition", lookaside.when)
            if not machine.call(bool, machine.call(lookaside.when, *args, **kwargs)):
                return NOT_TAKEN
        run.outside.root("lookaside", "replacement", lookaside.replacement)
        return machine.call(lookaside.replacement, *args, **kwargs)

    def note_call(self) -> None:
        """Note that a replacement was called."""
        self.were_called = True

    def __bool__(self) -> bool:
        return bool(self._lookasides)


def targets_of(function: object) -> list[tuple[Any, tuple[Any, ...]]]:
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
        if unbound is not None and callable_attribute(unbound, "__objclass__") is not None:
            targets.append((unbound, (function.__self__,)))
    return targets


def is_within(frame: Any, lookaside: Lookaside) -> bool:
    """Whether a frame runs within a call of the replacement, and not within a nested call of the original function."""
    replacement, original = code_of(lookaside.replacement), code_of(lookaside.function)
    while frame is not None:
        if frame.function is not None and frame.function is replacement:
            return True
        if frame.function is not None and frame.function is original:
            return False
        frame = frame.caller
    return False


def code_of(function: object) -> FunctionType | None:
    """Return the Python function whose frame a call of `function` creates; None if there is none."""
    while type(function) is functools.partial:
        function = function.func
    if type(function) is MethodType:
        function = function.__func__
    if type(function) is not FunctionType:
        function = getattr(type(function), "__call__", None)  # noqa: B004 - only compared
    compiled = programs_of(function)
    function = function if compiled is None else compiled.subject
    return function if type(function) is FunctionType else None
