"""The number of rounds of a trial: fast calls get more, since a process takes longer to start than they to run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

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
