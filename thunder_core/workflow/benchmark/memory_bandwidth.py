"""The bandwidth of a machine's memory, which bounds how fast a model generates: each token reads all weights once."""

from __future__ import annotations

import time

import torch

BLOCK = 128 << 20  # bytes: more than any cache holds
ROUNDS = 4  # the best of which counts; the first one brings the pages in


def memory_bandwidth(device: torch.device) -> float:
    """Bytes per second that a sum over a block of memory reads, by as many threads as PyTorch uses."""
    block = torch.ones(BLOCK // 4, device=device)
    return BLOCK / min(_seconds_of_sum(block) for _ in range(ROUNDS))


def _seconds_of_sum(block: torch.Tensor) -> float:
    began = time.perf_counter()
    block.sum().item()
    return time.perf_counter() - began
