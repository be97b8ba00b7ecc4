"""Choose the number of rounds of a trial, and the clock that times them.

Fast calls get more rounds, because starting a process takes longer than the requested rounds.
Candidates are compared across processes, and other load on the machine could disturb only one process. Calls of a
single thread are therefore measured in processor time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from thunder_core.workflow.benchmark.machine import threads_in_use
from thunder_core.workflow.benchmark.timing import Call, processor_timer

SECONDS = 0.2  # minimum time for each requested round; fast calls run more rounds in this time
MAX_FACTOR = 20  # the largest factor by which the number of rounds grows


def rounds_for(calls: Mapping[str, Callable[[], object]], requested: int) -> int:
    """Return the number of rounds to measure: the requested number, or more if the calls are fast.

    Each call runs once to warm up, and a second time for the estimate.
    """
    for call in calls.values():
        call()
    began = time.perf_counter()
    for call in calls.values():
        call()
    seconds = max(time.perf_counter() - began, 1e-6)
    return min(max(requested, int(SECONDS * requested / seconds)), MAX_FACTOR * requested)


def with_threads(call: Callable[[], object], threads: int) -> Callable[[], object]:
    """Return a function that makes the call while PyTorch uses this number of CPU threads."""

    def run() -> object:
        with threads_in_use(threads):
            return call()

    return run


def timer_of(device: torch.device, threads: int | None) -> Callable[[Call], float] | None:
    """Return the clock of a trial: processor time for single-threaded CPU calls, or None for the device's clock."""
    is_alone = device.type == "cpu" and threads in (None, 1) and torch.get_num_threads() == 1
    return processor_timer if is_alone else None


def clock_in_words(device: torch.device, threads: int | None) -> str:
    """Return the suffix that names the clock of a trial, or an empty string for the device's clock."""
    return "" if timer_of(device, threads) is None else ", processor time"
