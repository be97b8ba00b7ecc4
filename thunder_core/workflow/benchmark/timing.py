"""The time of one call on a device, and the memory that it allocates there."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from thunder_core.tracing.extension.memory_pools import bytes_of_pools
from thunder_core.workflow.benchmark.allocations import peak_allocated
from thunder_core.workflow.benchmark.graph_pools import replayed_pools

Call = Callable[[], object]

# The resolutions of Python's clock and of CUDA events ("around 0.5 microseconds", cudaEventElapsedTime), in seconds. A
# shorter time is reported as the resolution.
HOST_RESOLUTION, CUDA_RESOLUTION = time.get_clock_info("perf_counter").resolution, 0.5e-6


def timer_for(device: torch.device) -> Callable[[Call], float]:
    """Return a function that runs a call, waits until the device has completed it, and returns the seconds."""
    timer = TIMERS.get(device.type, _time_on_host)
    return lambda call: timer(call, device)


def processor_timer(call: Call) -> float:
    """Return the CPU time of a call in seconds.

    Only this thread is measured, so the call must be single-threaded. Unlike the elapsed time, the CPU time hardly
    depends on other processes.
    """
    begin = time.thread_time()
    call()
    return max(time.thread_time() - begin, HOST_RESOLUTION)


def _time_on_host(call: Call, _: torch.device) -> float:
    begin = time.perf_counter()
    call()
    return max(time.perf_counter() - begin, HOST_RESOLUTION)


def _time_on_cuda(call: Call, device: torch.device) -> float:
    """Return the seconds between two events on `device`, which may differ from the current GPU."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    stream = torch.cuda.current_stream(device)
    torch.cuda.synchronize(device)
    begin.record(stream)
    call()
    end.record(stream)
    torch.cuda.synchronize(device)
    return max(float(begin.elapsed_time(end)) / 1000, CUDA_RESOLUTION)


TIMERS: dict[str, Callable[[Call, torch.device], float]] = {"cuda": _time_on_cuda}


def peak_memory_of(call: Call, device: torch.device, *, profile_cpu: bool = False) -> int | None:
    """Return the peak bytes of a call above the memory that was allocated before; None if they are not measured.

    On CUDA, the allocator's counters are read. They do not count the memory that CUDA graphs keep between calls, so the
    memory pools of all replayed graphs are added. On a CPU, PyTorch's profiler measures the peak if `profile_cpu`
    is set: the resident set size cannot be used, because the allocator keeps freed memory.
    """
    if device.type == "cpu" and profile_cpu:
        return peak_allocated(call)
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    with replayed_pools() as pools:
        call()
        torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before + bytes_of_pools(pools)
