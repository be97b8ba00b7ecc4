"""`id`: a program that asks for an object's identity is for that object alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thunder_core.acquire.lookasides.table import lookaside


@lookaside(id)
def identify(
    acquisition: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any]:
    """Guard that the object is the same one, if it comes from outside."""
    path = acquisition.outside.path_of(args[0]) if len(args) == 1 else None
    if path is not None and path.parent is not None:
        acquisition.outside.guard("identity", path, args[0])
    return function
