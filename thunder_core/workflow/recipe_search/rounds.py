"""The rounds of a trial and their clock: fast calls get more rounds, since a process takes longer to start than they.

Candidates are compared across processes, which other load on the machine would disturb one by one. So calls of a single
thread are measured by their processor time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from thunder_core.workflow.benchmark.timing import Call, processor_timer

SECONDS = 0.2  # of each round that was asked for, which fast calls fill with more rounds
MOST = 20  # times as many


def rounds_for(calls: Mapping[str, Callable[[], object]], asked: int) -> int:
    """The rounds to measure: those that were asked for, or as many as fit into the time of so many slow ones.

    Each call runs once to warm up, and once more to be timed.
    """
    for call in calls.values():
        call()
    began = time.perf_counter()
    for call in calls.values():
        call()
    taken = max(time.perf_counter() - began, 1e-6)
    return min(max(asked, int(SECONDS * asked / taken)), MOST * asked)


def timer_of(device: torch.device, threads: int | None) -> Callable[[Call], float] | None:
    """The clock of a trial: processor time for calls of one thread on the CPU; None for the device's own clock."""
    is_alone = device.type == "cpu" and threads in (None, 1) and torch.get_num_threads() == 1
    return processor_timer if is_alone else None


def clock_in_words(device: torch.device, threads: int | None) -> str:
    """The clock of a trial, for the end of the name of the call; empty for the device's own clock."""
    return "" if timer_of(device, threads) is None else ", processor time"
