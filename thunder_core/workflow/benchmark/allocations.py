"""The memory that PyTorch's CPU allocator allocates during a call."""

from __future__ import annotations

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile

MEMORY = "[memory]"


def peak_allocated(run: Callable[[], object]) -> int:
    """Return the peak number of bytes on the CPU that were allocated during a call and not yet freed.

    Memory that was allocated before the call does not count. The numbers come from `torch.profiler` with
    `profile_memory`: they include temporaries inside kernels, and the profiler slows the call down.
    """
    # Without `acc_events`, PyTorch 2.11 warns that the next cycle would drop these events.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        run()
    results = profiler.profiler.kineto_results if profiler.profiler else None
    events = [event for event in (results.events() if results else ()) if event.name() == MEMORY]
    allocated = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        allocated += event.nbytes()
        peak = max(peak, allocated)
    return peak
