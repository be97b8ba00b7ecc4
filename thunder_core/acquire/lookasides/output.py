"""`print`: done by the epilogue at each call, with the values of that call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder_core.acquire.guards import is_constant
from thunder_core.acquire.lookasides.table import lookaside
from thunder_core.capture.numbers import Unknown


@lookaside(print)
def print_later(
    acquisition: Any, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Log the call as an effect, where its arguments are tensors and constants; otherwise it runs now and is sharp.

    Tensors are copied at this point of the program, since it may write to them later.
    """
    simple = all(is_fixed(arg) or isinstance(arg, torch.Tensor) for arg in (*args, *kwargs.values()))
    if not simple or "file" in kwargs:
        acquisition.note_edge("input and output: print of a mutable object, or to a file")
        return None

    def run(*args: Any, **kwargs: Any) -> None:
        kept = tuple(arg.detach().clone() if isinstance(arg, torch.Tensor) else arg for arg in args)
        acquisition.outside.effects.printed(kept, kwargs)

    return run


def is_fixed(value: Any) -> bool:
    """Whether a value will be the same when the epilogue runs."""
    if type(value) is tuple:
        return all(map(is_fixed, value))
    return is_constant(value) or isinstance(value, Unknown)
