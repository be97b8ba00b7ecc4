"""Backward hooks that the program registers on tensors and on nodes of autograd's graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import BuiltinMethodType
from typing import Any

import torch
from torch.autograd.graph import Node, _MultiHandle, register_multi_grad_hook
from torch.utils.hooks import RemovableHandle

from thunder_core.frontend.acquire.lookasides.table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.torch_facts.wrappers import wrappers_in
from thunder_core.tracing.capture.transform_levels import wrapped_in

METHODS_OF_NODES = frozenset({"register_hook", "register_prehook"})


@lookaside(torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)
def register_hook(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Register a hook of a tensor."""
    if wrapped_in(args[0]) or wrappers_in(args[0]):
        acquisition.recorder.gradients.hooks += [*args[1:2], *kwargs.values()]
        return None
    return lambda tensor, hook: acquisition.backward_hooks.on_tensor(function.__name__, tensor, hook)


@lookaside(register_multi_grad_hook)
def register_hook_of_several(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Register a hook that is called with the gradients of several tensors."""
    if wrapped_in((args, kwargs)):
        return None
    return lambda tensors, fn, *, mode="all": acquisition.backward_hooks.on_several(tensors, fn, mode)


@lookaside(RemovableHandle.remove, _MultiHandle.remove)
def remove_hook(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[..., Any] | None:
    """Remove a hook that the program has registered."""
    return acquisition.backward_hooks.remove if acquisition.backward_hooks.knows(args[0]) else None


@lookaside(torch._C._autograd._push_saved_tensors_default_hooks)
def set_saved_tensors_hooks(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Make autograd pack saved tensors, as a line of the trace."""
    return acquisition.saved_tensors_hooks.set


@lookaside(torch._C._autograd._pop_saved_tensors_default_hooks)
def unset_saved_tensors_hooks(
    acquisition: TracedRun, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Stop the packing of saved tensors, as a line of the trace."""
    return acquisition.saved_tensors_hooks.unset


def method_of_node(acquisition: TracedRun, method: Any) -> Callable[..., Any] | None:
    """Return the replacement of a node's method that registers a hook, or None."""
    is_of_node = type(method) is BuiltinMethodType and isinstance(method.__self__, Node)
    if not is_of_node or method.__name__ not in METHODS_OF_NODES:
        return None
    return partial(acquisition.backward_hooks.on_node, method.__name__, method.__self__)
