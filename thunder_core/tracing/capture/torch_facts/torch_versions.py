"""Names of PyTorch that refer to objects of different types in different versions, and functions that handle both.

The code checks the type of the object, never PyTorch's version.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import BuiltinMethodType, ClassMethodDescriptorType, MethodType
from typing import Any

import torch

# `apply` of each `torch.autograd.Function` is Python code until PyTorch 2.13, and C code from 2.14 on.
IS_APPLIED_IN_C = not isinstance(torch.autograd.Function.apply, MethodType)
APPLY: Any = getattr(torch.autograd.Function.apply, "__func__", torch.autograd.Function.apply)


def applied_in_c(function: object) -> type[torch.autograd.Function] | None:
    """Return the `torch.autograd.Function` that C code applies when this function is called, or None."""
    if type(function) is not BuiltinMethodType or function.__name__ != "apply":
        return None
    owner = function.__self__
    return owner if isinstance(owner, type) and issubclass(owner, torch.autograd.Function) else None


def apply_of(kind: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return PyTorch's own `apply` for a class, which may have an `apply` of its own that calls PyTorch's."""
    apply: Callable[..., Any] = torch.autograd.Function.__dict__["apply"].__get__(None, kind)
    return apply


def applied_by_c(kind: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return the C function `apply` of a class, even if the class overrides `apply` in Python."""
    owners = (owner.__dict__.get("apply") for owner in kind.__mro__)
    descriptor: Any = next(method for method in owners if isinstance(method, ClassMethodDescriptorType))
    apply: Callable[..., Any] = descriptor.__get__(None, kind)
    return apply


def with_defaults(
    kind: type[torch.autograd.Function], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return the arguments of a call of `apply` with the defaults of `forward`, where C code would add the defaults.

    C code reads the signature of `forward`, which differs while calls of `forward` are redirected to the interpreter.
    """
    if not IS_APPLIED_IN_C or kind.setup_context is torch.autograd.Function.setup_context:
        return args, kwargs
    bound = inspect.signature(kind.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.args, bound.kwargs
