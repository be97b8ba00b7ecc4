"""Compiled functions that a program calls: they are traced through, or called by one bound symbol."""

from __future__ import annotations

import types
from typing import Any

from thunder_core.backend.runtime.module import programs_of
from thunder_core.frontend.acquire.outside.call_traits import owner_of
from thunder_core.frontend.acquire.traced_run import Nested, TracedRun
from thunder_core.frontend.interpreter.callables import callable_attribute
from thunder_core.frontend.interpreter.observer import NOT_TAKEN


def compiled_function(run: TracedRun, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Trace through a compiled function, or call it as one bound symbol."""
    plain = callable_attribute(function, "__func__", function)
    inner: Any = programs_of(plain)
    if inner is None:
        return NOT_TAKEN
    args, nested = (*owner_of(function), *args), run.options.nested
    if nested is not None and nested.records_as_one_bound_symbol(inner.specializations):
        return _call(run, nested, plain, inner, args, kwargs)
    if not run.outside.is_functional:
        run.outside.note_attribute_read(plain, "_thunder", inner)
        run.outside.note_attribute_read(inner, "subject", inner.subject)
    else:  # a compiled function is code, not data that a functional program reads
        run.outside.root("compiled", "compiled", inner.subject)
    return run.machine.call(inner.subject, *args, **kwargs)


def _call(
    run: TracedRun,
    nested: Nested,
    plain: types.FunctionType,
    inner: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    compiled = inner.specializations
    run.recorder.levels.require_none(
        f"the compiled function `{plain.__name__}`, which has its own settings, is called",
        "compile both functions with the same settings, so that one program contains them, or call the transform "
        "outside",
    )
    owner, args = (plain, args) if compiled is inner else (args[0], args[1:])
    if all(run.outside.path_of(value) is None for value in (owner, compiled.derivative_of)):
        run.refuse(f"the program creates the compiled function `{plain.__name__}`, which has its own settings")
    run.outside.root("compiled", "compiled", compiled.subject)
    return nested(run, compiled, args, kwargs)
