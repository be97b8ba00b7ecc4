"""Embedding tables with quantized weights, which replace `torch.nn.Embedding`.

Codes are looked up as in `torch.nn.Embedding`, which refuses negative ids; indexing would count them from the end.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from thunder_core.backend.quantization.layers import BalancedColumnsLayer, BFloat16Layer, RotatedRowsLayer
from thunder_core.backend.quantization.products import OPERATIONS

rotated_rows = OPERATIONS["rotated_rows"]


class Int8Embedding(BalancedColumnsLayer):
    """A table in 8 bits, with a scale for each row and a factor for each column."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in PyTorch
        """Return the rows of the ids in `input` (...), as (..., columns) in the dtype of the float table."""
        rows = functional.embedding(input, self.codes).float() * self.scales[input].float().unsqueeze(-1)
        return (rows * self.factors.float()).to(self.dtype)


class RotatedInt8Embedding(RotatedRowsLayer):
    """A table in 8 bits, with a scale for each row; looked-up rows are rotated back."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in PyTorch
        """Return the rows of the ids in `input` (...), as (..., columns) in the dtype of the float table."""
        rows = functional.embedding(input, self.codes).float() * self.scales[input].float().unsqueeze(-1)
        result: Tensor = rotated_rows(rows.reshape(-1, self.columns))
        return result.view(rows.shape).to(self.dtype)


class BFloat16Embedding(BFloat16Layer):
    """A table in bfloat16."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in PyTorch
        """Return the rows of the ids in `input` (...), as (..., columns) in the dtype of the float table."""
        return functional.embedding(input, self.codes).to(self.dtype)
