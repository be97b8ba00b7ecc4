"""The memory bandwidth of a machine, which limits the speed of generation: each token reads all weights once."""

from __future__ import annotations

import time

import torch

BLOCK = 128 << 20  # bytes: larger than any cache
ROUNDS = 4  # the fastest round counts; the first round loads the pages


def memory_bandwidth(device: torch.device) -> float:
    """Measure the bytes per second at which PyTorch, with its number of threads, sums a block of memory."""
    block = torch.ones(BLOCK // 4, device=device)
    return BLOCK / min(_seconds_of_sum(block) for _ in range(ROUNDS))


def _seconds_of_sum(block: torch.Tensor) -> float:
    began = time.perf_counter()
    block.sum().item()
    return time.perf_counter() - began
