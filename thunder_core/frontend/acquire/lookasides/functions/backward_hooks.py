"""Backward hooks that the program registers on tensors and on nodes of autograd's graph."""

from __future__ import annotations

from collections.abc import Callable
from types import BuiltinMethodType
from typing import Any, NoReturn

import torch
from torch.autograd.graph import Node, _MultiHandle, register_multi_grad_hook
from torch.utils.hooks import RemovableHandle

from thunder_core.frontend.acquire.backward_hooks import METHODS_OF_NODES
from thunder_core.frontend.acquire.lookaside_table import lookaside, lookaside_of_each
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken
from thunder_core.tracing.capture.torch_facts.wrappers import wrappers_in
from thunder_core.tracing.capture.transform_levels import wrapped_tensors


@lookaside_of_each(torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook)
def register_hook(method: Callable[..., Any], run: TracedRun, /, tensor: torch.Tensor, hook: Callable[..., Any]) -> Any:
    """Register a hook of a tensor."""
    if wrapped_tensors(tensor) or wrappers_in(tensor):
        run.recorder.gradients.hooks.append(hook)
        return NOT_TAKEN
    return run.backward_hooks.on_tensor(method.__name__, tensor, hook)


@lookaside(register_multi_grad_hook)
def register_hook_of_several(
    run: TracedRun, /, tensors: object, fn: Callable[..., Any], *, mode: object = "all"
) -> Any:
    """Register a hook that is called with the gradients of several tensors."""
    return NOT_TAKEN if wrapped_tensors((tensors, fn)) else run.backward_hooks.on_several(tensors, fn, mode)


@lookaside(RemovableHandle.remove, _MultiHandle.remove)
def remove_hook(run: TracedRun, /, handle: object) -> NotTaken | None:
    """Remove a hook that the program has registered."""
    if not run.backward_hooks.has_registered(handle):
        return NOT_TAKEN
    run.backward_hooks.remove(handle)
    return None


@lookaside(torch._C._autograd._push_saved_tensors_default_hooks)
def set_saved_tensors_hooks(run: TracedRun, /, pack: Callable[..., Any], unpack: Callable[..., Any]) -> None:
    """Record that the program sets hooks with which autograd packs and unpacks saved tensors."""
    run.saved_tensors_hooks.set(pack, unpack)


@lookaside(torch._C._autograd._pop_saved_tensors_default_hooks)
def unset_saved_tensors_hooks(run: TracedRun, /) -> None:
    """Record that the program unsets its last pair of hooks for saved tensors."""
    run.saved_tensors_hooks.unset()


@lookaside(torch._C._will_engine_execute_node, torch._C._current_graph_task_id)
def ask_engine(run: TracedRun, /, *_: object) -> NoReturn:
    """Leave the program to eager PyTorch, because one of its hooks queries the backward pass that the engine runs.

    PyTorch's hooks for the gradients of several tensors do this, for example.
    """
    run.leave_to_eager(
        "a hook asks the autograd engine about its backward pass, which runs without data while tracing",
        "call backward() outside the program",
    )


def method_of_node(run: TracedRun, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Register a hook for a bound method of an autograd node; return `NOT_TAKEN` for all other methods."""
    is_named_so = type(method) is BuiltinMethodType and method.__name__ in METHODS_OF_NODES
    if not is_named_so or not isinstance(method.__self__, Node):
        return NOT_TAKEN
    return run.backward_hooks.on_node(method.__name__, method.__self__, *args, **kwargs)
