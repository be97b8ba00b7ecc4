"""SciPy's `linear_sum_assignment` as an operation of PyTorch, so that a trace calls it on the costs of each call.

Object detectors use this function in training to match their predictions with the objects of an image.
"""

from __future__ import annotations

from typing import Any

import torch

from thunder_core.foundation import plugins

SCIPY = "scipy.optimize:linear_sum_assignment"
LIBRARY = torch.library.Library("thunder", "FRAGMENT")  # type: ignore[no-untyped-call]
LIBRARY.define("linear_sum_assignment(Tensor cost, bool maximize) -> (Tensor, Tensor)")  # type: ignore[no-untyped-call]


def assign(cost: torch.Tensor, maximize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the row and column indices of an optimal assignment, both int64 of size (min(rows, columns),).

    `cost` is a matrix (rows, columns) on the CPU. Raises `ValueError` as SciPy does, for example for a NaN.
    """
    linear_sum_assignment: Any = plugins.import_object(SCIPY)  # SciPy takes half a second to import
    rows, columns = linear_sum_assignment(cost.numpy(), maximize)
    return torch.from_numpy(rows), torch.from_numpy(columns)


def metadata(cost: torch.Tensor, maximize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tensors without data that have the shape and dtype of the results of `assign`."""
    rows, columns = cost.shape
    count = columns if columns <= rows else rows
    return cost.new_empty((count,), dtype=torch.int64), cost.new_empty((count,), dtype=torch.int64)


LIBRARY.impl("linear_sum_assignment", assign, "CPU")  # type: ignore[no-untyped-call]
torch.library.register_fake("thunder::linear_sum_assignment", metadata, lib=LIBRARY)
OPERATOR = torch.ops.thunder.linear_sum_assignment.default


def linear_sum_assignment(cost: torch.Tensor, maximize: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Call the operation. Traces call this function, so that their code imports this module, which defines it."""
    return OPERATOR(cost, maximize)  # type: ignore[no-any-return]
