"""Checks of values that a program makes itself: its own errors, raised where its lines stand."""

from __future__ import annotations

from typing import Any

import torch

from thunder_core.tracing.library.output import dressed


def require(condition: torch.Tensor, kind: type[Exception], *parts: str | tuple[Any, ...]) -> None:
    """Raise an error of this class where a condition does not hold for all elements.

    A part of its text is a text, or a function with the values that it makes one of: `(format, tensor, ".2f")`.
    """
    if not condition.all():
        raise kind("".join(part if isinstance(part, str) else part[0](*map(shown, part[1:])) for part in parts))


def shown(value: Any) -> Any:
    """A value in which `(dressed, ...)` is the tensor that it stands for."""
    if type(value) is tuple and value[:1] == (dressed,):
        return dressed(*value[1:])
    if type(value) in (tuple, list):
        return type(value)(map(shown, value))
    return {key: shown(item) for key, item in value.items()} if type(value) is dict else value


REQUIRE = f"{__name__}.{require.__name__}"  # the name of its symbol
