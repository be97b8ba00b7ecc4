"""The memory that a device has left."""

from __future__ import annotations

import torch

from thunder_core.workflow.models.memory.memory_limits import is_refused_memory, limited_memory, machines_memory


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free on the device, or None where that cannot be known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] if torch.cuda._is_compiled() else None
    if device.type == "cpu":
        return min((left for left in (machines_memory(), limited_memory()) if left is not None), default=None)
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was asked for which is not there."""
    return isinstance(error, torch.OutOfMemoryError) or is_refused_memory(error)
