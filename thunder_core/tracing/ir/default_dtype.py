"""PyTorch's default dtype, changed for a block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    """Set the dtype of new tensors that name none, during the block; None leaves the setting unchanged."""
    before = torch.get_default_dtype()
    if dtype is not None:
        torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
