"""The free memory of a device."""

from __future__ import annotations

import torch

from thunder_core.workflow.models.memory.memory_limits import is_refused_memory, limited_memory, machines_memory


def free_memory(device: torch.device) -> int | None:
    """Return the free bytes of a device, or None if they are unknown."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] if torch.cuda._is_compiled() else None
    if device.type == "cpu":
        return min((left for left in (machines_memory(), limited_memory()) if left is not None), default=None)
    return None


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory could not be allocated."""
    return isinstance(error, torch.OutOfMemoryError) or is_refused_memory(error)
