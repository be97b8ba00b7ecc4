"""A fast path for tensor guards: at the next call, C code compares tensors with the metadata that passed before."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo import guards
from torch.nn import Parameter

from thunder_core.tracing.library.changes.tensor_class import current_version
from thunder_core.tracing.library.changes.tensor_class import versions as tensor_class_versions

BASE_TENSOR_CLASSES = (Tensor, Parameter)  # classes without Python code that could override metadata
ATTEMPTS = 16  # after this number of failures, for example because of aliases, the stored metadata is not updated

new_check: Callable[..., Any] | None = getattr(guards, "TensorGuards", None)


Free = Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]]
NO_FREE_DIMENSIONS: Free = {}


def _fixed_sizes(sizes: Sequence[int], free: tuple[int, ...]) -> list[int | None]:
    return [None if index in free else size for index, size in enumerate(sizes)]


def tensors_match(prologue: Any, tensors: tuple[Any, ...], expected: tuple[Any, ...] | None = None) -> bool:
    """Whether tensors have the classes, dtypes, shapes, strides, devices and `requires_grad` of the stored metadata.

    Tensors never match after `torch.Tensor` itself has changed, until its entries have been compared.

    Nested tensors never match: they have no strides, and the check in C would crash the process. If `expected` is set,
    only these tensors are checked for being nested, because the other tensors are the same objects as in an earlier
    call.
    """
    try:
        same = prologue.same
        if tensor_class_versions.value != prologue.tensor_class_version:
            return False
    except AttributeError:  # no metadata is stored
        return False
    for tensor in tensors if expected is None else expected:
        if (type(tensor) is not Parameter and type(tensor) is not Tensor) or tensor.is_nested:
            return False
    return bool(same(*tensors))


def remember(prologue: Any, tensors: tuple[torch.Tensor, ...], free: Free = NO_FREE_DIMENSIONS) -> None:
    """Store the metadata of tensors (not the tensors) that have passed the single guards of a prologue.

    `free` maps positions of tensors to the dimensions whose sizes, and those whose strides, may differ.
    """
    attempts = prologue.__dict__.get("attempts", 0)
    if new_check is None or attempts == ATTEMPTS:
        return
    prologue.attempts = attempts + 1
    prologue.tensor_class_version = current_version()
    prologue.same = new_check(
        *tensors,
        dynamic_dims_sizes=[_fixed_sizes(tensor.shape, *free.get(n, ((), ()))[:1]) for n, tensor in enumerate(tensors)],
        dynamic_dims_strides=[
            _fixed_sizes(tensor.stride(), *free.get(n, ((), ()))[1:]) for n, tensor in enumerate(tensors)
        ],
    ).check


def read_without_torch_function(read: Callable[[], Any]) -> Any:
    """Return the result of a function that reads metadata of tensors, without calls of a `__torch_function__`."""
    with torch._C.DisableTorchFunction():
        return read()
