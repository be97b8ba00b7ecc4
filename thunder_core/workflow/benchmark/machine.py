"""The name of the machine of a measurement; results of different machines are not compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from thunder_core.tracing.extension.processor import processor_name

__all__ = ["machine_name", "processor_name", "threads_in_use", "threads_of"]


@contextmanager
def threads_in_use(count: int | None) -> Iterator[None]:
    """While the block runs, let PyTorch use `count` CPU threads; None changes nothing."""
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
    """Return the number of threads that compute on the CPU; 1 for a GPU, where one thread launches kernels."""
    return torch.get_num_threads() if device.type == "cpu" else 1


def machine_name(device: torch.device) -> str:
    """Return the name of the hardware that determines speed: the GPU, or the processor and the number of threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{processor_name()}, {threads} thread{'' if threads == 1 else 's'}"
