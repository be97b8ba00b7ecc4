"""The backward of a `torch.autograd.Function` as a program that reads only its arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TRACED = ("gradients",)  # the functions of this module that the tracer traces into


def gradients(
    apply: Callable[..., Any],
    followed: Callable[[Any], Any],
    grad: Callable[..., Any],
    inputs: Any,
    cotangents: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Apply a function, and compute the gradients of inputs from the cotangents of its `followed` outputs."""
    return grad(followed(apply(*args, **kwargs)), inputs, cotangents, allow_unused=True)
