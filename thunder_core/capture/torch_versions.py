"""The names of PyTorch whose kind differs between versions, each with the one way in which Thunder uses the name.

The code asks PyTorch for the kind of a name, never for its version.
"""

from __future__ import annotations

from types import BuiltinMethodType, MethodType
from typing import Any

import torch

# `apply` of each `torch.autograd.Function` is Python code until PyTorch 2.13, and C code from 2.14 on.
IS_APPLIED_IN_C = not isinstance(torch.autograd.Function.apply, MethodType)
APPLY: Any = getattr(torch.autograd.Function.apply, "__func__", torch.autograd.Function.apply)


def applied_in_c(function: Any) -> type[torch.autograd.Function] | None:
    """Return the `torch.autograd.Function` that C code applies when this function is called, or None."""
    if type(function) is not BuiltinMethodType or function.__name__ != "apply":
        return None
    owner = function.__self__
    return owner if isinstance(owner, type) and issubclass(owner, torch.autograd.Function) else None
