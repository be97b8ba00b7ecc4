"""Tensors inside `torch.vmap`: a trace holds the operations that it makes of them, for all elements of a batch at once.

What stands for one element wraps the whole batch, a fake. Operations on it are PyTorch's to batch; those that come out
beneath are recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from thunder_core.ir.tree import leaves

TEXTS = frozenset({torch.Tensor.__repr__, torch.Tensor.__format__})  # what a tensor without data has none of
is_batched: Callable[[torch.Tensor], bool] = torch._C._functorch.is_batchedtensor


def batched_in(tree: Any) -> list[torch.Tensor]:
    """The tensors among the arguments or results of a call that stand for one element of a batch."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, torch.Tensor) and is_batched(leaf)]
