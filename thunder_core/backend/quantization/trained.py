"""Linear layers and embedding tables whose float weights are trained, and rounded to bfloat16 at each call."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from thunder_core.backend.quantization.input_rows import to_compute_dtype


class RoundedLayer(torch.nn.Module):
    """A layer with a float weight that is rounded to bfloat16 at each call; an optimizer changes the float weight."""

    @property
    def weight_bytes(self) -> int:
        """The size of the float weight in bytes."""
        return self.get_parameter("weight").nbytes

    @property
    def stored_bytes(self) -> int:
        """The size of the weight that the layer stores in bytes: the float weight."""
        return self.weight_bytes


class RoundedLinear(RoundedLayer, torch.nn.Linear):
    """A linear layer that multiplies in bfloat16, as `BFloat16Linear` does, and returns the dtype of its input."""

    def product(self, x: Tensor) -> Tensor:
        """Return the input times the rounded weight, in the dtype of the input."""
        return rounded_product(x, self.weight)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in PyTorch
        """Return the product and the bias, which is not rounded."""
        result = self.product(input)
        return result if self.bias is None else result + self.bias.to(input.dtype)


class RoundedEmbedding(RoundedLayer, torch.nn.Embedding):
    """An embedding table whose rows are rounded after they are looked up, so that gradients add up in float."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in PyTorch
        """Return the rows of the ids in `input` (...), as (..., columns) in the dtype of the table."""
        return super().forward(input).bfloat16().to(self.weight.dtype)


def rounded_product(x: Tensor, weight: Tensor) -> Tensor:
    """Return rows times a weight (rows, columns), both rounded to bfloat16, in the dtype of the rows of `x`."""
    rounded = to_compute_dtype(weight.bfloat16(), x.dtype)
    return functional.linear(to_compute_dtype(x), rounded).to(x.dtype)


def transposed_forward(self: Any, x: Tensor) -> Tensor:
    """Return the result of transformers' `Conv1D`, with a weight of (columns, rows) and a product in bfloat16."""
    result: Tensor = rounded_product(x, self.weight.t()) + self.bias.to(x.dtype)
    return result


@cache
def rounded_class(kind: Any) -> Any:
    """Return the subclass of `RoundedLayer` that replaces a class of float layers."""
    if kind is torch.nn.Linear:
        return RoundedLinear
    if kind is torch.nn.Embedding:
        return RoundedEmbedding
    return type(f"Rounded{kind.__name__}", (RoundedLayer, kind), {"forward": transposed_forward})
