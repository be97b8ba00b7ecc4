"""A fix of Triton's interpreter for NumPy 2.4 and later, which no longer accept a one-element array as a number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
from triton.runtime import interpreter

FIXED_SINCE = (3, 7)  # the first version of Triton with the fix


def patch_interpreter() -> None:
    """Make the interpreter of Triton 3.6 read the bounds of a kernel's loops as later versions do."""
    if tuple(map(int, triton.__version__.split(".")[:2])) >= FIXED_SINCE:
        return
    interpreter._patch_lang_tensor = with_index_conversion(interpreter._patch_lang_tensor)


def with_index_conversion(original: Callable[..., None]) -> Callable[..., None]:
    """Return a patch function that also lets tensors of Triton's interpreter convert to an index."""

    def patch(tensor: type, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    return patch
