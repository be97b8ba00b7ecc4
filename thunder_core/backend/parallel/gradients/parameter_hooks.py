"""The hooks of parameters whose gradients a recipe computes, averages or moves.

Autograd accumulates no gradient into a DTensor parameter that stands for the tensor that programs read, so its hooks
run when its gradient is stored. Hooks of parameters that `ddp` averages run before that, on the gradient of the rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from thunder_core.foundation.errors import OperationFailed

Hook = Callable[[Any], Any]
# The attributes of a tensor with the dictionaries of its hooks; handles of hooks remove them from the dictionaries.
HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
MULTI_GRAD_HOOK = torch.autograd.graph.register_multi_grad_hook.__name__
NO_PASS = -1  # the number of no backward pass


@dataclass(eq=False)
class HookBeforeReduction:
    """A hook of a parameter that runs before its gradient is reduced, instead of where autograd would run it.

    `ran_in` is the number of the latest backward pass in which the hook ran before a reduction; later in this pass, a
    call does nothing.
    """

    hook: Hook
    ran_in: int = NO_PASS

    def __call__(self, gradient: torch.Tensor) -> Any:
        """Call the hook if it did not run in the current backward pass."""
        return None if self.ran_in == current_pass() != NO_PASS else self.hook(gradient)


def current_pass() -> int:
    """Return the number of the backward pass that autograd runs now."""
    return int(torch._C._current_graph_task_id())


def move_hooks(source: torch.Tensor, parameter: torch.Tensor) -> None:
    """Let a parameter have the hooks of the parameter that it replaces."""
    for name in HOOKS:
        hooks = getattr(source, name)
        if hooks:
            setattr(parameter, name, hooks)


def run_hooks_before_reduction(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Run the hooks that `register_hook` registered on the gradient of this rank, and return the result.

    If the parameter is a DTensor, the gradient is that of its local tensor, and the hooks get a DTensor.
    """
    value, hooks = like_parameter(gradient, parameter), parameter._backward_hooks or {}
    for key, hook in list(hooks.items()):
        registered: Any = hook
        own = registered if isinstance(registered, HookBeforeReduction) else HookBeforeReduction(registered)
        hooks[key] = own
        value = result_of_hook(own.hook, value)
        own.ran_in = current_pass()
    result: torch.Tensor = getattr(value, "_local_tensor", value)
    return result.contiguous()


def like_parameter(local: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Return a local gradient as the gradient of a parameter: a DTensor if the parameter is one."""
    if not isinstance(parameter, DTensor):
        return local
    mesh, shape = parameter.device_mesh, parameter.shape
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(local, mesh, parameter.placements, run_check=False, shape=shape, stride=stride)


def run_gradient_hooks(parameter: torch.Tensor, gradient: DTensor) -> DTensor:
    """Run the hooks that `register_hook` registered on the gradient of a DTensor parameter, and return the result."""
    for hook in list((parameter._backward_hooks or {}).values()):
        gradient = result_of_hook(hook, gradient)
    return gradient


def result_of_hook(hook: Hook, gradient: Any) -> Any:
    """Return the gradient that a hook leaves.

    Raises `OperationFailed` for a hook of several DTensor parameters, which waits for nodes of autograd's graph that
    these do not have, and for a hook that returns no gradient of the DTensor parameter.
    """
    if not isinstance(gradient, DTensor):
        result = hook(gradient)
        return gradient if result is None else result
    if getattr(hook, "__qualname__", "").startswith(f"{MULTI_GRAD_HOOK}."):
        raise OperationFailed(
            f"a hook of `{MULTI_GRAD_HOOK}` has a parameter that is divided among the ranks",
            fix="register a hook of each parameter: `parameter.register_hook`, or "
            "`parameter.register_post_accumulate_grad_hook`",
        )
    result = hook(gradient)
    return gradient if result is None else checked_result(result, gradient)


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
