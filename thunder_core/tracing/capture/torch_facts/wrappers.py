"""Wrapper subclasses: tensors that hold other tensors, and define operations with `__torch_dispatch__`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.nested._internal.nested_tensor import NestedTensor

from thunder_core.foundation.errors import OperationFailed
from thunder_core.tracing.ir.tree import leaves


class Wrapped(OperationFailed):
    """The error for a tensor without a fake; the tracer then traces the operations of the tensor instead."""


def is_wrapper(value: object) -> bool:
    """Whether a value is a tensor that exposes its inner tensors, and runs operations on them."""
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor | NestedTensor):
        return False
    decides = type(value).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return decides and hasattr(type(value), "__tensor_flatten__") and hasattr(type(value), "__tensor_unflatten__")


def wrappers_in(tree: object) -> list[torch.Tensor]:
    """Return the tensors of wrapper subclasses among the arguments of a call."""
    return [leaf for leaf in leaves(tree) if is_wrapper(leaf)]


def parts_of_wrapper(tensor: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Return the tensors that a wrapper holds, with the names of their attributes."""
    with torch._C.DisableTorchFunction():
        names, _ = tensor.__tensor_flatten__()
    return ((name, getattr(tensor, name)) for name in names)


FIXES = {
    "DTensor": "to train, compile the module with the recipe fsdp instead of fully_shard, or tensor-parallel instead "
    "of parallelize_module; or under fully_shard, compile the forward: `module.forward = "
    "thunder_core.jit(module.forward)`, before or after fully_shard; or run this part under torch.no_grad()"
}


def run_through(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a function on tensors of which some are wrappers: their inner operations are recorded, and not the function.

    Autograd would record the function itself, so no argument may require a gradient.
    """
    tensors = [leaf for leaf in leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    with torch._C.DisableTorchFunction():
        tracked = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    if tracked:
        kind = type(wrappers_in((args, kwargs))[0]).__name__
        raise OperationFailed(
            f"a tensor of class {kind}, which wraps other tensors, is used where gradients are needed, and the "
            "derivatives of its operations are not known",
            fix=FIXES.get(kind, "run this part under torch.no_grad(), or leave it uncompiled"),
        )
    return function(*args, **kwargs)
