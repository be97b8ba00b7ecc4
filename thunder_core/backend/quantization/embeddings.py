"""Embedding tables with quantized weights, which replace `torch.nn.Embedding`."""

from __future__ import annotations

from torch import Tensor

from thunder_core.backend.quantization.layers import InBFloat16, WithBalancedColumns, WithRotatedRows
from thunder_core.backend.quantization.products import OPERATIONS

rotated_rows = OPERATIONS["rotated_rows"]


class Int8Embedding(WithBalancedColumns):
    """A table in 8 bits, with a scale for each row and a factor for each column."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in PyTorch
        """Return the rows of the ids in `input` (...), as (..., columns) in the dtype of the float table."""
        rows = self.codes[input].float() * self.scales[input].float().unsqueeze(-1)
        return (rows * self.factors.float()).to(self.dtype)


class RotatedInt8Embedding(WithRotatedRows):
    """A table in 8 bits, with a scale for each row; looked-up rows are rotated back."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in PyTorch
        """Return the rows of the ids in `input` (...), as (..., columns) in the dtype of the float table."""
        rows = self.codes[input].float() * self.scales[input].float().unsqueeze(-1)
        result: Tensor = rotated_rows(rows.reshape(-1, self.columns))
        return result.view(rows.shape).to(self.dtype)


class BFloat16Embedding(InBFloat16):
    """A table in bfloat16."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - the name in PyTorch
        """Return the rows of the ids in `input` (...), as (..., columns) in the dtype of the float table."""
        return self.codes[input].to(self.dtype)
