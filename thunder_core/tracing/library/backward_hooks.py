"""Backward hooks of a program. The computation registers them, and the epilogue sets the functions that they call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.graph import Node, register_multi_grad_hook
from torch.nn.modules._functions import BackwardHookFunction
from torch.utils.hooks import RemovableHandle


class Hook:
    """A hook that calls the user's function `function`, which the epilogue sets later.

    The user's function may close over results of the program, so it does not exist before the program has run.
    """

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self.function = function

    def __call__(self, *gradients: Any) -> Any:
        """Call the user's function."""
        return None if self.function is None else self.function(*gradients)


Registered = tuple[Any, Hook]  # the handle to remove a hook, and the hook


def register_hook_of_tensor(tensor: torch.Tensor, method: str) -> Registered:
    """Register a hook with a method of a tensor. If the tensor requires no gradient, the hook is never called."""
    return _register(tensor if tensor.requires_grad else None, method)


def register_hook_of_node(node: Node | None, method: str) -> Registered:
    """Register a hook with a method of a node of autograd's graph. If the node is None, the hook is never called."""
    return _register(node, method)


def register_hook_of_several(tensors: Sequence[torch.Tensor], mode: Any) -> Registered:
    """Register a hook that is called with the gradients of several tensors."""
    if not all(tensor.requires_grad for tensor in tensors):
        return _register(None, mode)
    hook = Hook()
    return register_multi_grad_hook(tensors, hook, mode=mode), hook


def _register(owner: object, method: str) -> Registered:
    """Register a hook with a method of its owner. Without an owner, the hook is never called."""
    hook = Hook()
    return (RemovableHandle(OrderedDict()) if owner is None else getattr(owner, method)(hook)), hook


def node_at(tensor: torch.Tensor, steps: Sequence[int]) -> Node | None:
    """Follow positions in `next_functions` from a tensor's node, and return the last node; None without a graph."""
    node = tensor.grad_fn
    for step in steps:
        node = None if node is None else node.next_functions[step][0]
    return node


def remove_hook(handle: Any) -> None:
    """Remove a hook of the program."""
    handle.remove()


def set_function(hook: Hook, function: Callable[..., Any], *owners: Any) -> None:
    """Set the user's function of a hook.

    The caller passes `owners` to keep the hook's tensors alive until this call.
    """
    hook.function = function


def pass_gradients(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the tensors as results of one node, so that a module's backward hooks receive all their gradients."""
    results: tuple[torch.Tensor, ...] = BackwardHookFunction.apply(*tensors)  # type: ignore[no-untyped-call]
    return results


NAMES_OF_REGISTERING = frozenset(
    f"{__name__}.{function.__name__}"
    for function in (register_hook_of_tensor, register_hook_of_node, register_hook_of_several, remove_hook)
)
NAMES = NAMES_OF_REGISTERING | {f"{__name__}.{function.__name__}" for function in (pass_gradients, node_at)}
