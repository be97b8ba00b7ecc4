"""Convert parts of captured graphs back to PyTorch functions: checkpoints, and the user's autograd functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

TRACED = ("forward",)  # the functions of this module that the tracer traces into


class CheckpointedBody(torch.nn.Module):
    """A part of a graph that the backward recomputes; `options` are the options of `checkpoint`."""

    def __init__(self, body: torch.fx.GraphModule, options: dict[str, Any]) -> None:
        super().__init__()
        self.body, self.options = body, options

    def forward(self, *inputs: Any) -> Any:
        """Run the part with `checkpoint`."""
        return checkpoint(self.body.forward, *inputs, **self.options)


class OwnDerivative(torch.nn.Module):
    """A part of a graph with another part as its derivative: an application of a `torch.autograd.Function`."""

    def __init__(
        self,
        body: torch.fx.GraphModule,
        backward: torch.fx.GraphModule,
        dirty: Sequence[int],
        non_differentiable: Sequence[int],
    ) -> None:
        super().__init__()
        self.body, self.derivative = body, backward
        self.function = function_of(body, backward, dirty, non_differentiable)

    def forward(self, *inputs: Any) -> Any:
        """Apply the autograd function."""
        apply: Callable[..., Any] = self.function.apply
        return apply(*inputs)


def function_of(
    body: torch.fx.GraphModule,
    derivative: torch.fx.GraphModule,
    dirty: Sequence[int],
    non_differentiable: Sequence[int],
) -> type[torch.autograd.Function]:
    """Return an autograd function whose forward runs `body`, and whose backward runs `derivative`.

    `body` returns the outputs and the values that it saves for the backward.
    """

    class CapturedFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Any) -> Any:
            output, saved = body.forward(*inputs)
            outputs = output if isinstance(output, tuple | list) else (output,)
            if dirty:
                ctx.mark_dirty(*(outputs[index] for index in dirty))
            if non_differentiable:
                ctx.mark_non_differentiable(*(outputs[index] for index in non_differentiable))
            ctx.are_tensors = [isinstance(value, torch.Tensor) for value in saved]
            ctx.others = [value for value in saved if not isinstance(value, torch.Tensor)]
            ctx.save_for_backward(*(value for value in saved if isinstance(value, torch.Tensor)))
            return output

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            tensors, others = iter(ctx.saved_tensors), iter(ctx.others)
            saved = [next(tensors) if is_tensor else next(others) for is_tensor in ctx.are_tensors]
            return derivative.forward(*gradients, *saved)

    return CapturedFunction
