"""The load that other processes put on the processors while a measurement runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter

import psutil

SHORTEST = 0.05  # seconds; the system counts processor time in ticks of 1/100 s, so less than five ticks say little
IDLE = ("idle", "iowait")  # the states in which a processor is free
GUESTS = ("guest", "guest_nice")  # which `user` and `nice` contain
BUSY = 0.25  # of a processor: below this, threads hardly wait for other processes


@dataclass(frozen=True)
class Usage:
    """The processor time in seconds that was used until now: by this process, by all, and by other virtual machines."""

    own: float
    all: float
    stolen: float

    @classmethod
    def now(cls) -> Usage:
        """The counters of this process and of the system."""
        mine, system = psutil.Process().cpu_times(), psutil.cpu_times()._asdict()
        used = sum(seconds for state, seconds in system.items() if state not in (*IDLE, *GUESTS))
        own = mine.user + mine.system + mine.children_user + mine.children_system
        return cls(own, used, system.get("steal", 0.0))


@dataclass
class MachineLoad:
    """The processors that others used, in the mean over an interval of time: other processes, and virtual machines.

    `others` includes `stolen`, the time that the host of a virtual machine gave to other machines. Both are None where
    the interval was too short to tell.
    """

    processors: int = field(default_factory=lambda: psutil.cpu_count() or 1)
    others: float | None = None
    stolen: float | None = None

    def crowds(self, threads: int) -> bool:
        """Whether the processors that other processes left free were too few for this number of threads."""
        return self.others is not None and self.processors - self.others < threads - BUSY

    @property
    def used_by_others(self) -> str:
        """The processors that others used, in words."""
        stolen = f", {self.stolen:.1f} of them for other virtual machines" if (self.stolen or 0) >= BUSY else ""
        return f"other processes use {self.others or 0:.1f} of {self.processors} processors{stolen}"

    def in_words(self, threads: int) -> str:
        """The load, where these threads had to wait; empty for a machine with enough free processors."""
        return f"busy: {self.used_by_others}" if self.crowds(threads) else ""


@contextmanager
def observed_load() -> Iterator[MachineLoad]:
    """While the block runs the load is observed; the result is complete at its end."""
    load, before, began = MachineLoad(), Usage.now(), perf_counter()
    try:
        yield load
    finally:
        seconds, after = perf_counter() - began, Usage.now()
        if seconds >= SHORTEST:
            others = (after.all - before.all) - (after.own - before.own)
            load.others = min(max(others / seconds, 0.0), float(load.processors))
            load.stolen = max(after.stolen - before.stolen, 0.0) / seconds
