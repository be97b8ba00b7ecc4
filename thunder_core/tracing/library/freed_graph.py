"""Tensors whose graph of autograd was freed by a backward pass inside the program, as epilogues return them."""

from __future__ import annotations

from typing import Any

import torch

MESSAGE = (
    "Trying to backward through the graph a second time: the compiled program that computed this tensor has called "
    "backward() on it, and freed what was saved. Specify retain_graph=True if you need to backward through the graph "
    "a second time."
)


class FreedGraph(torch.autograd.Function):
    """The identity, with a backward that raises: no gradient comes through this graph."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        """The tensor's values, in its memory."""
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:  # noqa: ARG004
        """Raise the error of eager PyTorch."""
        raise RuntimeError(MESSAGE)


def with_freed_graph(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as eager returns it after backward(): it requires a gradient, and cannot have one any more."""
    with torch.enable_grad():
        result: torch.Tensor = FreedGraph.apply(tensor, torch.empty(0, requires_grad=True))  # type: ignore[no-untyped-call]
    return result
