"""Results whose autograd graph a backward pass inside the program has freed."""

from __future__ import annotations

from typing import Any

import torch

MESSAGE = (
    "Trying to backward through the graph a second time: the compiled program that computed this tensor has called "
    "backward() on it, and freed what was saved. Specify retain_graph=True if you need to backward through the graph "
    "a second time."
)


class FreedGraph(torch.autograd.Function):
    """The identity, with a backward that raises an error."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        """Return the tensor's values, in the same memory."""
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # noqa: ARG004
        """Raise the error of eager PyTorch."""
        raise RuntimeError(MESSAGE)


def with_freed_graph(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as eager returns it after backward(): it requires a gradient, but its graph is freed."""
    with torch.enable_grad():
        result: torch.Tensor = FreedGraph.apply(tensor, torch.empty(0, requires_grad=True))  # type: ignore[no-untyped-call]
    return result
