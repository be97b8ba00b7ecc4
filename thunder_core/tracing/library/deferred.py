"""Functions whose source code is compiled and executed at their first call."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from types import FunctionType
from typing import Any

from thunder_core.foundation.errors import ArtifactForeign

FIRST = "__first_call__"  # the global variable with the function that handles the first call


def deferred_function(name: str, namespace: dict[str, Any], define: Callable[[], Callable[..., Any]]) -> FunctionType:
    """Return a function with the globals `namespace`; its first call runs `define`, which executes the source.

    If `define` returns a plain function with these globals, the returned function takes over its code, so that later
    calls have no overhead. Otherwise, it calls the result of `define`. Raises `ArtifactForeign` if the source cannot be
    executed.
    """
    function = FunctionType(_until_defined.__code__, namespace, name)
    lock = RLock()
    defined: list[Callable[..., Any]] = []

    def first_call(*args: Any, **kwargs: Any) -> Any:
        with lock:
            if not defined:
                defined.append(run_definition(name, define))
                take_over_code(function, defined[0])
        return defined[0](*args, **kwargs)

    namespace[FIRST] = first_call
    return function


def run_definition(name: str, define: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """Return the result of `define`; an error of the source becomes `ArtifactForeign`."""
    try:
        return define()
    except Exception as error:
        raise ArtifactForeign(
            f"the source of the artifact's `{name}` cannot be executed: {type(error).__name__}: {error}",
            fix="load the artifact with the packages that it was made with, or make the artifact again",
        ) from error


def take_over_code(function: FunctionType, other: Callable[..., Any]) -> None:
    """Give a function the code of another function with the same globals and no closure."""
    if isinstance(other, FunctionType) and other.__globals__ is function.__globals__ and other.__closure__ is None:
        function.__defaults__, function.__kwdefaults__ = other.__defaults__, other.__kwdefaults__
        function.__code__ = other.__code__


def _until_defined(*args: Any, **kwargs: Any) -> Any:
    return __first_call__(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821 (of the namespace)
