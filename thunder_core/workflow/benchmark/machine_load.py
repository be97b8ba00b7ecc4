"""The load that other processes put on the processors during a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

import psutil

SHORTEST = 0.05  # seconds of a measurable period: the system counts processor time in ticks of 1/100 s
IDLE_STATES = ("idle", "iowait")  # the states in which a processor is free
GUEST_STATES = ("guest", "guest_nice")  # states that are left out, because `user` and `nice` include them
BUSY_PROCESSORS = 0.25  # processors; if other processes use fewer, threads hardly wait


@dataclass(frozen=True)
class Usage:
    """The processor time in seconds that has been used so far.

    `own` is the time of this process and its children, `all` the time of all processes, and `stolen` the time that the
    host of a virtual machine gave to other machines.
    """

    own: float
    all: float
    stolen: float

    @classmethod
    def now(cls) -> Usage:
        """Return the counters of this process and of the system."""
        process, system = psutil.Process().cpu_times(), psutil.cpu_times()._asdict()
        used = sum(seconds for state, seconds in system.items() if state not in (*IDLE_STATES, *GUEST_STATES))
        own = process.user + process.system + process.children_user + process.children_system
        return cls(own, used, system.get("steal", 0.0))


@dataclass
class MachineLoad:
    """The mean number of processors that other processes and other virtual machines used during a period.

    `other_processes` includes `stolen`, the processors that the host of a virtual machine gave to other machines. Both
    are None if the period was too short.
    """

    processors: int = field(default_factory=lambda: psutil.cpu_count() or 1)
    other_processes: float | None = None
    stolen: float | None = None

    def leaves_too_few_processors(self, threads: int) -> bool:
        """Whether other processes left too few processors free for these threads; False if the load is unknown."""
        return self.other_processes is not None and self.processors - self.other_processes < threads - BUSY_PROCESSORS

    @property
    def used_by_others(self) -> str:
        """The number of processors that others used, in words."""
        stolen = (
            f", {self.stolen:.1f} of them for other virtual machines" if (self.stolen or 0) >= BUSY_PROCESSORS else ""
        )
        return f"other processes use {self.other_processes or 0:.1f} of {self.processors} processors{stolen}"

    def in_words(self, threads: int) -> str:
        """Return the load in words if this number of threads had to wait; otherwise an empty string."""
        return f"busy: {self.used_by_others}" if self.leaves_too_few_processors(threads) else ""


@contextmanager
def observe_load() -> Iterator[MachineLoad]:
    """Measure the load while the block runs. The yielded object gets its values at the end of the block."""
    load, before, began = MachineLoad(), Usage.now(), perf_counter()
    try:
        yield load
    finally:
        seconds, after = perf_counter() - began, Usage.now()
        if seconds >= SHORTEST:
            other_processes = (after.all - before.all) - (after.own - before.own)
            load.other_processes = min(max(other_processes / seconds, 0.0), float(load.processors))
            load.stolen = max(after.stolen - before.stolen, 0.0) / seconds
