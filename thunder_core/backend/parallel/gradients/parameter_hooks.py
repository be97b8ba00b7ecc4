"""The hooks of parameters whose gradients a recipe for parallel training computes.

A program reads a plain tensor in place of a DTensor parameter. Autograd accumulates the gradient of this tensor, and
never runs the hooks of the parameter. Therefore, this module runs the hooks when the gradient is stored in the
parameter's `.grad`. If `ddp` averages the gradient, the hooks run before the average, on the gradient of this rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import OperationFailed

Hook = Callable[[Any], Any]
# The attributes of a tensor with the dictionaries of its hooks. A replaced parameter and its replacement share the
# dictionaries, so that the handle of a hook still removes the hook.
HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
MULTI_GRAD_HOOK = torch.autograd.graph.register_multi_grad_hook.__name__
NO_PASS = -1  # what `current_pass` returns if no backward pass runs


@dataclass(eq=False)
class HookBeforeReduction:
    """A hook of a parameter that runs before the parameter's gradient is reduced, earlier than autograd would run it.

    `ran_in` is the number of the latest backward pass in which the hook ran before a reduction. When autograd calls
    the hook later in the same pass, the call does nothing.
    """

    hook: Hook
    ran_in: int = NO_PASS

    def __call__(self, gradient: torch.Tensor) -> Any:
        """Call the hook if it did not run in the current backward pass."""
        return None if self.ran_in == current_pass() != NO_PASS else self.hook(gradient)


def current_pass() -> int:
    """Return the number of the backward pass that autograd runs now."""
    return int(torch._C._current_graph_task_id())


def share_hooks(source: torch.Tensor, parameter: torch.Tensor) -> None:
    """Share the hooks of a replaced parameter with its replacement."""
    for name in HOOKS:
        hooks = getattr(source, name)
        if hooks:
            setattr(parameter, name, hooks)


def run_hooks_before_reduction(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Run the hooks that `register_hook` registered on the gradient of this rank, and return the result.

    If the parameter is a DTensor, the gradient is that of its local tensor, and the hooks get a DTensor.
    """
    value, hooks = distribute_like_parameter(gradient, parameter), parameter._backward_hooks or {}
    for key, hook in list(hooks.items()):
        registered: Any = hook
        wrapped = registered if isinstance(registered, HookBeforeReduction) else HookBeforeReduction(registered)
        hooks[key] = wrapped
        value = result_of_hook(wrapped.hook, value)
        wrapped.ran_in = current_pass()
    result: torch.Tensor = getattr(value, "_local_tensor", value)
    return result.contiguous()


def distribute_like_parameter(local: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
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
    """Call a hook with a gradient. Return the hook's result, or the gradient if the result is None.

    Raises `OperationFailed` for a hook of `register_multi_grad_hook` on a DTensor parameter, because the hook waits for
    nodes of autograd's graph, which the parameter does not have. Raises it also if a hook returns neither None nor a
    tensor like the gradient: a DTensor for a DTensor, of the same shape and dtype.
    """
    if isinstance(gradient, DTensor) and getattr(hook, "__qualname__", "").startswith(f"{MULTI_GRAD_HOOK}."):
        raise OperationFailed(
            f"a hook of `{MULTI_GRAD_HOOK}` has a parameter that is divided among the ranks",
            fix="register a hook of each parameter: `parameter.register_hook`, or "
            "`parameter.register_post_accumulate_grad_hook`",
        )
    result = hook(gradient)
    return gradient if result is None else redistribute_like_gradient(result, gradient)


def redistribute_like_gradient(result: Any, gradient: Any) -> Any:
    """Return the result of a hook as a tensor with the placements of the gradient.

    Raises `OperationFailed` unless the result is a tensor of the gradient's shape and dtype, and a DTensor for a
    DTensor.
    """
    if not isinstance(result, DTensor if isinstance(gradient, DTensor) else torch.Tensor):
        raise OperationFailed(
            f"a hook of a parameter returned {object_of_class(type(result))}, but the gradient is of class "
            f"{type(gradient).__name__}",
            fix="compute the result from the gradient that the hook gets, or return None",
        )
    if result.shape != gradient.shape or result.dtype != gradient.dtype:
        raise OperationFailed(
            f"a hook of a parameter returned a gradient of the shape {tuple(result.shape)} and the dtype "
            f"{result.dtype}, but the parameter has {tuple(gradient.shape)} and {gradient.dtype}",
            fix="return a gradient of the same shape and dtype, or None",
        )
    if not isinstance(result, DTensor):
        return result
    if (result.device_mesh, result.placements) == (gradient.device_mesh, gradient.placements):
        return result
    return result.redistribute(gradient.device_mesh, gradient.placements)


def run_post_accumulate_hooks(parameter: torch.Tensor) -> None:
    """Run the hooks that `register_post_accumulate_grad_hook` registered, after the gradient has been stored."""
    for hook in list((parameter._post_accumulate_grad_hooks or {}).values()):
        hook(parameter)
