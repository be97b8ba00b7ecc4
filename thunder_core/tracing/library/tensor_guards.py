"""Tensors that passed the guards of a prologue: what is remembered of them is compared in C at the next call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo import guards
from torch.nn import Parameter

PLAIN = (Tensor, Parameter)  # classes without Python code of their own that could answer for their metadata
ATTEMPTS = 16  # tensors that pass the guards and yet differ each time, by what they alias, say, are remembered no more

new_check: Callable[..., Any] | None = getattr(guards, "TensorGuards", None)


Free = Mapping[int, tuple[tuple[int, ...], tuple[int, ...]]]
NONE_FREE: Free = {}


def _fixed(sizes: Sequence[int], free: tuple[int, ...]) -> list[int | None]:
    return [None if place in free else size for place, size in enumerate(sizes)]


def tensors_match(prologue: Any, tensors: tuple[Any, ...]) -> bool:
    """Whether tensors have the classes, dtypes, shapes, strides, devices and `requires_grad` of those remembered.

    Nested tensors have no strides, and the check in C would end the process at them: they are never known.
    """
    try:
        same = prologue.same
    except AttributeError:  # none is remembered
        return False
    for tensor in tensors:
        if (type(tensor) is not Parameter and type(tensor) is not Tensor) or tensor.is_nested:
            return False
    return bool(same(*tensors))


def remember(prologue: Any, tensors: tuple[torch.Tensor, ...], free: Free = NONE_FREE) -> None:
    """Remember the metadata of tensors (not the tensors) that have passed the guards of a prologue one by one.

    `free` has by the places of tensors the dimensions whose sizes, and those whose strides, may differ.
    """
    attempts = prologue.__dict__.get("attempts", 0)
    if new_check is None or attempts == ATTEMPTS:
        return
    prologue.attempts = attempts + 1
    prologue.same = new_check(
        *tensors,
        dynamic_dims_sizes=[_fixed(tensor.shape, *free.get(n, ((), ()))[:1]) for n, tensor in enumerate(tensors)],
        dynamic_dims_strides=[_fixed(tensor.stride(), *free.get(n, ((), ()))[1:]) for n, tensor in enumerate(tensors)],
    ).check
