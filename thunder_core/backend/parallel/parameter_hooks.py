"""The hooks of a DTensor parameter whose gradient comes from the tensor that programs read in its place.

Autograd accumulates no gradient into such a parameter, so its hooks run when its gradient is stored.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor

from thunder_core.foundation.errors import OperationFailed

# The attributes of a tensor with the dictionaries of its hooks; handles of hooks remove them from the dictionaries.
HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
MULTI_GRAD_HOOK = torch.autograd.graph.register_multi_grad_hook.__name__


def move_hooks(source: torch.Tensor, parameter: torch.Tensor) -> None:
    """Let a parameter have the hooks of the parameter that it replaces."""
    for name in HOOKS:
        hooks = getattr(source, name)
        if hooks:
            setattr(parameter, name, hooks)


def run_gradient_hooks(parameter: torch.Tensor, gradient: DTensor) -> DTensor:
    """Run the hooks that `register_hook` registered, and return the gradient that they leave.

    Raises `OperationFailed` for a hook of several parameters, which waits for nodes of autograd's graph that the
    parameters do not have, and for a hook that returns no gradient of the parameter.
    """
    for hook in list((parameter._backward_hooks or {}).values()):
        if getattr(hook, "__qualname__", "").startswith(f"{MULTI_GRAD_HOOK}."):
            raise OperationFailed(
                f"a hook of `{MULTI_GRAD_HOOK}` has a parameter that is divided among the ranks",
                fix="register a hook of each parameter: `parameter.register_hook`, or "
                "`parameter.register_post_accumulate_grad_hook`",
            )
        result = hook(gradient)
        if result is not None:
            gradient = checked_result(result, gradient)
    return gradient


def checked_result(result: Any, gradient: DTensor) -> DTensor:
    """Return the result of a hook with the placements of the gradient; raise `OperationFailed` for other tensors."""
    if not isinstance(result, DTensor):
        raise OperationFailed(
            f"a hook of a parameter that is divided among the ranks returned a {type(result).__name__}, not a DTensor",
            fix="compute the result from the gradient that the hook gets, which is a DTensor",
        )
    if result.shape != gradient.shape or result.dtype != gradient.dtype:
        raise OperationFailed(
            f"a hook of a parameter returned a gradient of the shape {tuple(result.shape)} and the dtype "
            f"{result.dtype}, but the parameter has {tuple(gradient.shape)} and {gradient.dtype}",
            fix="return a gradient of the same shape and dtype, or None",
        )
    if result.placements == gradient.placements:
        return result
    return result.redistribute(gradient.device_mesh, gradient.placements)


def run_post_accumulate_hooks(parameter: torch.Tensor) -> None:
    """Run the hooks that `register_post_accumulate_grad_hook` registered, after the gradient has been stored."""
    for hook in list((parameter._post_accumulate_grad_hooks or {}).values()):
        hook(parameter)
