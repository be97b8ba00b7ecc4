"""The time of one call on a device, and the memory that it allocates there."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from thunder_core.workflow.benchmark.allocations import peak_allocated
from thunder_core.workflow.benchmark.graph_pools import free_bytes, replayed_pools

Call = Callable[[], object]

# The resolution in seconds, which is also the shortest time: of Python's clock, and of CUDA's events ("around 0.5
# microseconds", cudaEventElapsedTime).
HOST_RESOLUTION, CUDA_RESOLUTION = time.get_clock_info("perf_counter").resolution, 0.5e-6


def timer_for(device: torch.device) -> Callable[[Call], float]:
    """Return a function that runs a call on the device until it is complete, and returns its seconds."""
    timer = TIMERS.get(device.type, _time_on_host)
    return lambda call: timer(call, device)


def processor_timer(call: Call) -> float:
    """Return the seconds of processor time that a call takes in this thread, the only computing thread.

    Other processes hardly affect this time, unlike the elapsed time.
    """
    begin = time.thread_time()
    call()
    return max(time.thread_time() - begin, HOST_RESOLUTION)


def _time_on_host(call: Call, _: torch.device) -> float:
    begin = time.perf_counter()
    call()
    return max(time.perf_counter() - begin, HOST_RESOLUTION)


def _time_on_cuda(call: Call, device: torch.device) -> float:
    """Return the time between two events on the GPU that computes, which may differ from the current GPU."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    stream = torch.cuda.current_stream(device)
    torch.cuda.synchronize(device)
    begin.record(stream)
    call()
    end.record(stream)
    torch.cuda.synchronize(device)
    return max(float(begin.elapsed_time(end)) / 1000, CUDA_RESOLUTION)


TIMERS: dict[str, Callable[[Call, torch.device], float]] = {"cuda": _time_on_cuda}


def peak_of(call: Call, device: torch.device, *, on_host: bool = False) -> int | None:
    """Return the peak bytes of a call above the memory allocated before; None if they are not measured.

    CUDA's allocator always counts. It counts the temporaries of CUDA graphs as free, so the free blocks of the memory
    pools of all graphs that the call replays are added. On a CPU, the resident set size of the process is not
    meaningful, because the allocator keeps memory that earlier calls have freed. PyTorch's profiler measures it if
    `on_host` is set.
    """
    if device.type == "cpu" and on_host:
        return peak_allocated(call)
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with replayed_pools() as pools:
        call()
        torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before + free_bytes(pools)
