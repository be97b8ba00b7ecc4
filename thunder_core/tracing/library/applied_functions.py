"""Functions that run the methods of a `torch.autograd.Function` as parts of a program."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

TRACED = ("gradients", "inlined_forward", "forward_alone")  # the functions of this module that the tracer traces into


def gradients(
    apply: Callable[..., Any],
    kind: Any,
    methods: Iterable[str],
    tracked_outputs: Callable[[Any], Any],
    grad: Callable[..., Any],
    inputs: object,
    cotangents: object,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Apply an autograd function, and compute the gradients of inputs from the cotangents of its tracked outputs.

    `tracked_outputs(result)` returns the outputs that autograd tracks. Autograd itself calls the `methods` of the
    function's class, so they are read here: the tracer then finds their closure variables and defaults.
    """
    for name in methods:
        method = getattr(kind, name)
        while method is not None:  # `once_differentiable` and `custom_bwd` wrap the user's method
            getattr(method, "__defaults__", None), getattr(method, "__kwdefaults__", None)
            method = getattr(method, "__wrapped__", None)
    return grad(tracked_outputs(apply(*args, **kwargs)), inputs, cotangents, allow_unused=True)


class ForwardContext:
    """The `ctx` of a forward that is part of a program; its attributes have the same names as PyTorch's."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.to_save: tuple[Any, ...] = ()
        self.non_differentiable: tuple[Any, ...] = ()
        self.dirty_tensors: tuple[Any, ...] = ()
        self.materialize_grads = True

    def save_for_backward(self, *tensors: Any) -> None:
        """Store the tensors that the backward reads."""
        self.to_save = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Do nothing, because a program does not use the function's own rule for forward-mode derivatives."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        """Store the outputs that need no gradient."""
        self.non_differentiable = tensors

    def mark_dirty(self, *tensors: Any) -> None:
        """Store the inputs that the forward writes to."""
        self.dirty_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Set whether the backward gets zeros or None for outputs without a gradient."""
        self.materialize_grads = value

    def attributes(self) -> dict[str, Any]:
        """Return the attributes that the user's forward has set."""
        return {name: value for name, value in vars(self).items() if name not in CONTEXT_NAMES}


CONTEXT_NAMES = frozenset(vars(ForwardContext(())))


def forward_alone(kind: Any, args: tuple[Any, ...]) -> Any:
    """Run the forward of a function without its backward, and return its output."""
    needs_grad = tuple(isinstance(value, torch.Tensor) and value.requires_grad for value in args)
    has_setup = kind.setup_context is not torch.autograd.Function.setup_context
    return inlined_forward(kind, has_setup, ForwardContext(needs_grad), args)


def inlined_forward(kind: Any, has_setup: bool, context: ForwardContext, args: tuple[Any, ...]) -> Any:
    """Run the forward of a function like PyTorch: autograd does not track its operations."""
    with torch.no_grad():
        if not has_setup:
            return kind.forward(context, *args)
        output = kind.forward(*args)
        kind.setup_context(context, args, output)
        return output
