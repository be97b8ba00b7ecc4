"""The memory that a device has left."""

from __future__ import annotations

from pathlib import Path

import torch

from thunder_core.workflow.models.memory.memory_limits import is_refused_memory, limited_memory

MEMORY_FILE = Path("/proc/meminfo")


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free on the device, or None where that cannot be known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] if torch.cuda._is_compiled() else None
    if device.type == "cpu":
        return min((left for left in (machines_memory(), limited_memory()) if left is not None), default=None)
    return None


def machines_memory() -> int | None:
    """Bytes that the machine has left, whoever may take them; None where it does not say."""
    if not MEMORY_FILE.exists():
        return None
    lines = (line.split() for line in MEMORY_FILE.read_text().splitlines())
    return next((int(line[1]) * 1024 for line in lines if line[0] == "MemAvailable:"), None)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was asked for which is not there."""
    return isinstance(error, torch.OutOfMemoryError) or is_refused_memory(error)
