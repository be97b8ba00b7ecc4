"""The name of the measuring machine: results of different machines are not held against each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from thunder_core.tracing.extension.processor import processor_name

__all__ = ["machine_name", "processor_name", "threads_in_use", "threads_of"]


@contextmanager
def threads_in_use(count: int | None) -> Iterator[None]:
    """While the block runs PyTorch computes on the CPU with so many threads; with None, as it did."""
    if count is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def threads_of(device: torch.device) -> int:
    """The number of threads that compute on the CPU: one, which launches kernels, for a GPU."""
    return torch.get_num_threads() if device.type == "cpu" else 1


def machine_name(device: torch.device) -> str:
    """The name of what decides about speed on a device: the GPU, or the processor and the number of threads in use."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{processor_name()}, {threads} thread{'' if threads == 1 else 's'}"
