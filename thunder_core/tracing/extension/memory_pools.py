"""The memory pools of CUDA's allocator, which CUDA graphs have."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, TypeAlias

import torch

Pool: TypeAlias = tuple[int, int]


def bytes_of_pools(pools: Set[Pool]) -> int:
    """Return the bytes of memory pools: the temporaries and the results of their graphs."""
    segments: list[dict[str, Any]] = torch.cuda.memory_snapshot() if pools else []  # type: ignore[no-untyped-call]
    return sum(segment["total_size"] for segment in segments if tuple(segment["segment_pool_id"]) in pools)
