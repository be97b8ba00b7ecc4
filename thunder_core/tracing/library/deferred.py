"""Functions that are known by their text, which is compiled and executed when they are called for the first time."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from types import FunctionType
from typing import Any

from thunder_core.foundation.errors import ArtifactForeign

FIRST = "__first_call__"  # what the function is until then, among the globals of its text


def deferred(name: str, namespace: dict[str, Any], define: Callable[[], Callable[..., Any]]) -> FunctionType:
    """A function of that name whose globals are the namespace; `define` executes its text there at the first call.

    From then on it is the function that `define` returned, where that is a plain one of these globals: calls cost
    nothing more. Any other is called by it. Raises `ArtifactForeign` where the text cannot be executed.
    """
    function = FunctionType(_until_defined.__code__, namespace, name)
    lock = RLock()
    defined: list[Callable[..., Any]] = []

    def first_call(*args: Any, **kwargs: Any) -> Any:
        with lock:
            if not defined:
                defined.append(executed(name, define))
                become(function, defined[0])
        return defined[0](*args, **kwargs)

    namespace[FIRST] = first_call
    return function


def executed(name: str, define: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """The object that a definition gives; whatever it raises is said of the text: the call has no part in it."""
    try:
        return define()
    except Exception as error:
        raise ArtifactForeign(
            f"the source of the artifact's `{name}` cannot be executed: {type(error).__name__}: {error}",
            fix="load the artifact with the packages that it was made with, or make the artifact again",
        ) from error


def become(function: FunctionType, other: Callable[..., Any]) -> None:
    """Let a function do what another does that has the same globals and closes over nothing."""
    if isinstance(other, FunctionType) and other.__globals__ is function.__globals__ and other.__closure__ is None:
        function.__defaults__, function.__kwdefaults__ = other.__defaults__, other.__kwdefaults__
        function.__code__ = other.__code__


def _until_defined(*args: Any, **kwargs: Any) -> Any:
    return __first_call__(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821 (of the namespace)
