"""Factories with `requires_grad=True`, which are recorded as two calls."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

C_FUNCTIONS = (types.BuiltinFunctionType, types.MethodDescriptorType)


def makes_leaf(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call returns a leaf because of `requires_grad=True`.

    `torch.asarray` keeps a tensor that requires a gradient as it is, and marks other tensors that it returns.
    """
    if kwargs.get("requires_grad") is not True or not isinstance(function, C_FUNCTIONS) or "out" in kwargs:
        return False
    first = args[0] if args else None
    return function is not torch.asarray or not (isinstance(first, torch.Tensor) and first.requires_grad)


def make_leaf(
    run: Callable[..., Any], function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Run a factory and then `requires_grad_`.

    PyTorch sets `requires_grad` outside of all operations, so a recorded factory alone would not show that its result
    is a leaf.
    """
    leaf = run(function, args, {key: value for key, value in kwargs.items() if key != "requires_grad"})
    if not (leaf.is_floating_point() or leaf.is_complex()):
        raise RuntimeError("Only Tensors of floating point and complex dtype can require gradients")
    return run(torch.Tensor.requires_grad_, (leaf,), {})
