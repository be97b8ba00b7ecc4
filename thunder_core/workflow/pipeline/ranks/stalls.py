"""Detect endless loops of ranks from their states: a rank computes for too long while another rank waits.

Each command, compiled region, measurement and collective is progress of a rank. A rank that waits uses no processor
time.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

import torch.distributed as dist

from thunder_core.backend.parallel.positions import sequence_number
from thunder_core.foundation.progress_marks import last_mark

# A rank that computes for this many seconds without progress has failed, if another rank has waited as long.
STALL_TIME_LIMIT = 600.0
# A rank that uses at least this share of a processor computes; on a loaded machine, the share is less than 1.
MIN_PROCESSOR_SHARE = 0.2


@dataclass(frozen=True)
class RankState:
    """The state of the main thread of a rank: its processor time, its number of marks and collectives, its last step,
    and its line of code.
    """

    processor_seconds: float
    progress: int
    step: str
    line: str

    def text(self) -> str:
        """Return the state as JSON."""
        return json.dumps(asdict(self))


def own_state() -> RankState | None:
    """Return the state of the main thread of this process; None if its processor time is not available."""
    mark, thread = last_mark(), threading.main_thread().ident or 0
    clock_of: Callable[[int], int] | None = getattr(time, "pthread_getcpuclockid", None)
    if clock_of is None:
        return None
    frame = sys._current_frames().get(thread)
    line = "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return RankState(time.clock_gettime(clock_of(thread)), mark.number + collectives(), mark.step, line)


def collectives() -> int:
    """Return PyTorch's counts of the collectives that this rank has called, summed over its process groups.

    Gloo also counts messages between two ranks.
    """
    return sum(map(sequence_number, list(dist.distributed_c10d._world.pg_map)))


def state_from_text(text: str) -> RankState | None:
    """Return the state that `RankState.text` wrote as JSON; None for an empty text."""
    return RankState(**json.loads(text)) if text else None


@dataclass
class Stall:
    """A period in which a rank makes no progress: its start, the processor time at its start, the time since which the
    rank waits, and the last state with the time when the state was read.
    """

    began: float
    processor_seconds_at_start: float
    waits_since: float
    read_at: float
    last: RankState

    def follow(self, now: float, state: RankState) -> None:
        """Update the times with a new state, in which the rank has made no progress."""
        if state.processor_seconds - self.last.processor_seconds > MIN_PROCESSOR_SHARE * (now - self.read_at):
            self.waits_since = now
        self.read_at, self.last = now, state

    def computes(self, now: float) -> bool:
        """Whether the rank has used a processor during a long stall, and does not wait now."""
        spent, duration = self.last.processor_seconds - self.processor_seconds_at_start, now - self.began
        return duration > STALL_TIME_LIMIT and spent > MIN_PROCESSOR_SHARE * duration and not self.waits(now)

    def waits(self, now: float) -> bool:
        """Whether the rank has waited for a long time."""
        return now - self.waits_since > STALL_TIME_LIMIT


def next_stall(stall: Stall | None, now: float, state: RankState) -> Stall:
    """Return the stall of a rank, updated with a new state of the rank; it starts now if the rank has made progress."""
    if stall is None or stall.last.progress != state.progress:
        return Stall(now, state.processor_seconds, now, now, state)
    stall.follow(now, state)
    return stall


def endless_loop(stalls: Mapping[int, Stall], now: float) -> tuple[int, str] | None:
    """Return a rank that computes without progress while another rank waits, and a sentence about the rank.

    Return None if there is no such rank.

    Compiling and measuring are progress. If no rank waits, no rank is reported.
    """
    waiting = next((rank for rank, stall in stalls.items() if stall.waits(now)), None)
    looping = next((rank for rank, stall in stalls.items() if stall.computes(now)), None)
    if waiting is None or looping is None or waiting == looping:
        return None
    last, other = stalls[looping].last, stalls[waiting].last
    return looping, (
        f"it has computed for {STALL_TIME_LIMIT:.0f} seconds without progress in the step `{last.step}`, "
        f"at {last.line}, while rank {waiting} waits in the step `{other.step}`, at {other.line}"
    )
