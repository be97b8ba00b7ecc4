"""The free memory of a device."""

from __future__ import annotations

import torch

from thunder_core.foundation.memory_limits import available_memory, is_refused_memory

SHARED_POOL = (0, 0)  # the pool of tensors outside of CUDA graphs


def free_memory(device: torch.device) -> int | None:
    """Return the free bytes of a device, or None if they are unknown.

    For a GPU, free blocks in the cache of PyTorch's allocator count as free, because PyTorch reuses or releases them.
    """
    if device.type == "cuda":
        if not torch.cuda._is_compiled():
            return None
        return torch.cuda.mem_get_info(device)[0] + cached_memory(device)
    if device.type == "cpu":
        return available_memory()
    return None


def cached_memory(device: torch.device) -> int:
    """Return the bytes of a GPU that PyTorch's allocator has reserved and does not use.

    Memory in the pools of CUDA graphs does not count, because only the graphs of a pool use it.
    """
    index = torch.cuda.current_device() if device.index is None else device.index
    return sum(
        segment["total_size"] - segment["allocated_size"]
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if segment["device"] == index and tuple(segment.get("segment_pool_id", SHARED_POOL)) == SHARED_POOL
    )


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory could not be allocated."""
    return isinstance(error, torch.OutOfMemoryError) or is_refused_memory(error)
