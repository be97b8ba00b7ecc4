"""The name of the measuring machine: results of different machines are not held against each other."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

PROCESSOR_FILE = Path("/proc/cpuinfo")


def processor_name() -> str:
    """The name of the processor as its maker writes it, or what Python knows of it."""
    if PROCESSOR_FILE.exists():
        lines = (line.partition(":") for line in PROCESSOR_FILE.read_text().splitlines())
        names = {key.strip(): value.strip() for key, _, value in lines}
        if names.get("model name"):
            return names["model name"]
    return platform.processor() or platform.machine()


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
