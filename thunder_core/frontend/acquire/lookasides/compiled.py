"""Compiled functions that a program calls: they are traced through, or called by one bound symbol."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from thunder_core.frontend.acquire.traced_run import Nested, TracedRun


def compiled_function(
    acquisition: TracedRun, function: Any, plain: types.FunctionType, inner: Any
) -> Callable[..., Any]:
    """Trace through a compiled function, or call it as one bound symbol."""
    nested = acquisition.nested
    if nested is not None and nested.stays(inner.specializations):
        return functools.partial(_call, acquisition, nested, function, plain, inner)
    if acquisition.outside.surprises is None:
        acquisition.outside.attribute(plain, "_thunder", inner)
        acquisition.outside.attribute(inner, "subject", inner.subject)
    else:  # a compiled function is code, not data that a functional program reads
        acquisition.outside.root("compiled", "compiled", inner.subject)
    return functools.partial(acquisition.machine.call, inner.subject, *owner_of(function))


def _call(
    acquisition: TracedRun,
    nested: Nested,
    function: Any,
    plain: types.FunctionType,
    inner: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    compiled = inner.specializations
    acquisition.recorder.levels.require_none(
        f"the compiled function `{plain.__name__}`, which has its own settings, is called",
        "compile both functions with the same settings, so that one program contains them, or call the transform "
        "outside",
    )
    arguments: tuple[Any, ...] = (*owner_of(function), *args)
    owner, arguments = (plain, arguments) if compiled is inner else (arguments[0], arguments[1:])
    if all(acquisition.outside.path_of(value) is None for value in (owner, compiled.derivative_of)):
        acquisition.refuse(f"the program creates the compiled function `{plain.__name__}`, which has its own settings")
    acquisition.outside.root("compiled", "compiled", compiled.subject)
    return nested(acquisition, compiled, arguments, kwargs)


def owner_of(function: Any) -> tuple[Any, ...]:
    """Return the object that a method is bound to, as a tuple, which is empty for a function."""
    return (function.__self__,) if type(function) is types.MethodType else ()
