"""The types that PyTorch's kernels take, where its functions for metadata take more.

A call of a kernel that refuses its types raises in eager PyTorch, also where nobody reads what it would give. Functions
for metadata seldom ask; so a call of which all tensors are integers, booleans or complex is tried once on real ones.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from thunder_core.tracing.capture.fakes.tensors import Tensors, tensors_in
from thunder_core.tracing.capture.fakes.trial import eager_error

REFUSED = "not implemented for '"  # in what the dispatch by types of PyTorch's kernels says
NATIVE = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
Key = tuple[Callable[..., Any], tuple[torch.dtype, ...]]


class KernelTypes:
    """Tells what a kernel says of the types of a call; each function and types are tried once."""

    def __init__(self) -> None:
        self._taken: set[Key] = set()

    def refusal(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Tensors
    ) -> Exception | None:
        """The error of a kernel that does not take the types of these fakes; None for all other calls."""
        fakes = tensors_in((args, kwargs))
        if not fakes or any(fake.is_floating_point() for fake in fakes) or not is_of_pytorch(function):
            return None
        key = (function, tuple(fake.dtype for fake in fakes))
        if key in self._taken:
            return None
        error = eager_error(function, args, kwargs, tensors, valued=False)
        if error is not None and REFUSED in str(error):
            return error
        self._taken.add(key)
        return None


def is_of_pytorch(function: Callable[..., Any]) -> bool:
    """Whether a function is of PyTorch's own kernels, which do nothing but compute."""
    if isinstance(function, torch._ops.OpOverload):
        return function.namespace == "aten"
    return isinstance(function, NATIVE) or getattr(function, "__module__", "") == "torch.nn.functional"


KERNEL_TYPES = KernelTypes()
