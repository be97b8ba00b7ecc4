"""Functions that are accurate near zero, in vectors of Inductor's C++ backend.

Inductor computes `expm1(x)` as `exp(x) - 1`, and `atanh(x)` by a logarithm of a number near one. Both results are zero
for small `x`, where PyTorch's results are accurate. PyTorch's own vectors have accurate functions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from unittest import mock

from torch._inductor.codegen.cpp import CppVecOverrides

FUNCTIONS = ("expm1", "atanh")


@contextmanager
def accurate_near_zero() -> Iterator[None]:
    """Call PyTorch's accurate functions within the context."""
    with ExitStack() as stack:
        for name in FUNCTIONS:
            stack.enter_context(mock.patch.object(CppVecOverrides, name, staticmethod(method_call(name))))
        yield


def method_call(name: str) -> Callable[[object], str]:
    """Return a function that writes the call of a method of a vector."""

    def write(vector: object) -> str:
        return f"{vector}.{name}()"

    return write
