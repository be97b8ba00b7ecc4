"""The memory that PyTorch's allocator for the CPU was asked for while something ran."""

from __future__ import annotations

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile

MEMORY = "[memory]"


def peak_allocated(run: Callable[[], object]) -> int:
    """The most bytes on the CPU that the call had allocated and not yet freed at any time; what was there before it
    counts as nothing.

    Told by the hooks of PyTorch's allocator (`torch.profiler` with `profile_memory`), which see the kernels' own
    temporaries too. It slows the call down.
    """
    # Without `acc_events` PyTorch 2.11 warns that a next cycle would drop this one's events.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        run()
    results = profiler.profiler.kineto_results if profiler.profiler else None
    events = [event for event in (results.events() if results else ()) if event.name() == MEMORY]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak
