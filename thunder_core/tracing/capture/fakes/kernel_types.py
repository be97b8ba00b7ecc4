"""Find the dtypes that PyTorch's kernels refuse, although its meta functions accept them.

In eager PyTorch, a kernel that refuses the dtypes of its arguments raises an error even if its result is not used. Meta
functions, which run on fakes, rarely check dtypes. So a call whose tensors are all integers, booleans or complex is
tried once on real tensors.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch

from thunder_core.tracing.capture.fakes.tensors import Tensors, tensors_in
from thunder_core.tracing.capture.fakes.trial import eager_error

REFUSED = "not implemented for '"  # a part of the message of a kernel that refuses a dtype
NATIVE = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
Key = tuple[Callable[..., Any], tuple[torch.dtype, ...]]


class KernelTypes:
    """The functions that were tried on real tensors: each function once for each combination of dtypes."""

    def __init__(self) -> None:
        self._accepted: set[Key] = set()

    def refusal(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tensors: Tensors
    ) -> Exception | None:
        """Return the error of a kernel that does not accept the dtypes of these fakes; None for all other calls."""
        fakes = tensors_in((args, kwargs))
        if not fakes or any(fake.is_floating_point() for fake in fakes) or not is_pytorch_function(function):
            return None
        key = (function, tuple(fake.dtype for fake in fakes))
        if key in self._accepted:
            return None
        error = eager_error(function, args, kwargs, tensors, valued=False)
        if error is not None and REFUSED in str(error):
            return error
        self._accepted.add(key)
        return None


def is_pytorch_function(function: Callable[..., Any]) -> bool:
    """Whether a function that is called with tensors is PyTorch's own, so that a trial has no side effects."""
    if isinstance(function, torch._ops.OpOverload):
        return function.namespace == "aten"
    return isinstance(function, NATIVE) or getattr(function, "__module__", "") == "torch.nn.functional"


KERNEL_TYPES = KernelTypes()
