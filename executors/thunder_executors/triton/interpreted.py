"""Triton's interpreter beside NumPy 2.4 and later, which no longer take an array of one number for the number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
from triton.runtime import interpreter

MENDED = (3, 7)  # the version of Triton that reads the number itself


def mend() -> None:
    """Have the interpreter of Triton 3.6 read the bounds of a kernel's loops as later ones do."""
    if tuple(map(int, triton.__version__.split(".")[:2])) >= MENDED:
        return
    interpreter._patch_lang_tensor = reading_numbers(interpreter._patch_lang_tensor)


def reading_numbers(original: Callable[..., None]) -> Callable[..., None]:
    """A context in which tensors of Triton's interpreter have a value as a number besides."""

    def patched(tensor: type, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    return patched
