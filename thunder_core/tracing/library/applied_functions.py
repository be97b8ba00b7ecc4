"""The backward of a `torch.autograd.Function` as a program, which reads nothing but what it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TRACED = ("gradients",)  # of the functions of this module, those that the tracer runs through


def gradients(
    apply: Callable[..., Any],
    followed: Callable[[Any], Any],
    grad: Callable[..., Any],
    inputs: Any,
    cotangents: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Apply a function, and compute the gradients of inputs from those of the outputs that are `followed`."""
    return grad(followed(apply(*args, **kwargs)), inputs, cotangents, allow_unused=True)
