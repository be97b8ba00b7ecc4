"""Hooks of leaves in a recorded backward pass: the recorder, and not PyTorch's engine, accumulates gradients and calls
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

Hook = Callable[..., Any]


@dataclass(frozen=True)
class Hooks:
    """The hooks of a leaf: called with its gradient before accumulation, and with the leaf afterwards."""

    before: Sequence[Hook] = ()
    after: Sequence[Hook] = ()


class AccumulationHooks:
    """The hooks that a program registers on the nodes that accumulate the gradients of leaves."""

    def __init__(self) -> None:
        self._registered: list[tuple[Any, str, RemovableHandle]] = []

    def note(self, node: Any, method: str, handle: RemovableHandle) -> None:
        """Note a hook that was registered on a node, if the node accumulates the gradient of a leaf."""
        if hasattr(node, "variable"):
            self._registered.append((node, method, handle))

    def nodes(self, leaf: torch.Tensor) -> list[Any]:
        """Return the nodes of a leaf that have hooks."""
        return [node for node, _, handle in self._registered if node.variable is leaf and hook_of(handle) is not None]

    def before(self, leaf: torch.Tensor) -> list[Hook]:
        """Return the hooks that are called with a tuple of the leaf's gradient, before accumulation."""
        return self._registered_by("register_prehook", leaf)

    def after(self, leaf: torch.Tensor) -> list[Hook]:
        """Return the hooks that are called after accumulation, with no gradients of inputs and the leaf's gradient."""
        return self._registered_by("register_hook", leaf)

    def _registered_by(self, method: str, leaf: torch.Tensor) -> list[Hook]:
        hooks = (hook_of(handle) for node, name, handle in self._registered if node.variable is leaf and name == method)
        return [hook for hook in hooks if hook is not None]


def hook_of(handle: RemovableHandle) -> Hook | None:
    """Return the hook of a handle, or None if the hook was removed."""
    hook: Hook | None = (handle.hooks_dict_ref() or {}).get(handle.id)
    return hook


@contextmanager
def hooks_called_first(tensor: torch.Tensor, hooks: Sequence[Hook]) -> Iterator[None]:
    """Register hooks on a tensor during the block, before the hooks that the tensor already has.

    The engine calls hooks in the order in which they were inserted into the tensor's dict; `move_to_end` has no effect.
    """
    with torch._C.DisableTorchFunction():
        others = dict(tensor._backward_hooks or {})
        if others:
            tensor._backward_hooks.clear()  # type: ignore[union-attr]
        handles = [tensor.register_hook(hook) for hook in hooks]  # type: ignore[no-untyped-call]
        if others:
            tensor._backward_hooks.update(others)  # type: ignore[union-attr]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def own_hooks(fake: torch.Tensor) -> Hooks:
    """Return the hooks that the program has registered on a fake."""
    before, after = fake._backward_hooks, fake._post_accumulate_grad_hooks
    return Hooks((*(before or {}).values(),), (*(after or {}).values(),))


def gradient_after_hook(result: Any, grad: torch.Tensor) -> torch.Tensor:
    """Return the gradient after a hook before accumulation, which returns None or a tuple with another gradient."""
    if result is None:
        return grad
    _require_tuple(result)
    if len(result) != 1:
        raise RuntimeError("hook has returned an incorrect number of values")
    changed: torch.Tensor = result[0]
    return changed


def require_no_result(result: object, leaf: torch.Tensor) -> None:
    """Raise PyTorch's error for a hook after accumulation that returns something other than None or its argument."""
    if result is None or result is leaf:
        return
    if not isinstance(result, torch.Tensor):
        raise TypeError(f"expected Variable, but hook returned '{type(result).__name__}'")
    raise RuntimeError("Tensor post accumulate grad hooks should return None.")


def require_no_gradients(result: object) -> None:
    """Raise PyTorch's error for a hook of an accumulation node that returns gradients: the node has no inputs."""
    if result is not None:
        _require_tuple(result)
        if result:
            raise RuntimeError("hook has returned an incorrect number of values")


def _require_tuple(result: object) -> None:
    if not isinstance(result, tuple):
        raise TypeError(f"expected tuple, but hook returned '{type(result).__name__}'")
