"""The watch of a rank over the other ranks: if another rank fails or does not respond, this rank ends too.

A thread of each rank writes a sign of life to the store of the process group. The first rank reads the signs of all
ranks, and the other ranks read the sign of the first rank. If another rank fails, the thread interrupts this rank, or
ends the process if this rank waits in a collective, which cannot be interrupted. A sign contains the state of the rank.
From the states, the first rank detects endless loops; a rank in an endless loop is interrupted, too.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from thunder_core.foundation.errors import RankFailed
from thunder_core.workflow.pipeline.ranks.stalls import (
    RankState,
    Stall,
    endless_loop,
    next_stall,
    own_state,
    state_from_text,
)
from thunder_core.workflow.pipeline.request.launch import Launch

FAILURE = "thunder_failure"  # the key of the first error in the store of the process group
ALIVE = "thunder_alive"  # the prefix of the keys of the signs of life
END_SIGN = b"ended"  # the last sign of a rank
SIGN_PERIOD = 1.0  # seconds between two signs of life
SIGN_TIME_LIMIT = 40.0  # a rank that gives no sign for this many seconds has failed
END_TIME_LIMIT = 10.0  # seconds in which an interrupted rank may end by itself


def rank_error(rank: int, text: str) -> RankFailed:
    """Return the error that the other ranks raise if a rank failed."""
    return RankFailed(f"rank {rank} failed: {text}", fix="fix the cause that the error names; nothing was written")


def report_failure(store: Any, rank: int, text: str) -> None:
    """Write the error of a rank to the store, unless another error was written first."""
    store.compare_set(FAILURE, "", json.dumps({"rank": rank, "error": text}))


def reported_failure(store: Any, own_rank: int | None) -> RankFailed | None:
    """Return the error that the store contains; None without an error, or for an error of the own rank."""
    if not store.check([FAILURE]):
        return None
    failure = json.loads(store.get(FAILURE))
    return None if failure["rank"] == own_rank else rank_error(failure["rank"], failure["error"])


def sign_text(number: int) -> str:
    """Return a sign of life: its number, and the state of this rank."""
    state = own_state()
    return f"{number} {'' if state is None else state.text()}"


@dataclass
class SignOfLife:
    """The last sign of life of a rank, and the time at which it was first read."""

    value: bytes
    read_at: float

    @property
    def state(self) -> RankState | None:
        """The state of the rank; None before its first sign and after its last."""
        return state_from_text(self.value.partition(b" ")[2].decode())


@dataclass
class Watch:
    """The watch of one rank. `failure` is the error that interrupted this rank: another rank's, or an endless loop.

    `is_alone` says whether the other ranks wait for a command of this rank; then it may compute for any time.
    """

    launch: Launch
    store: Any
    is_alone: Callable[[], bool]
    failure: RankFailed | None = None
    signs: dict[int, SignOfLife] = field(default_factory=dict)
    stalls: dict[int, Stall] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        """Start the thread; it interrupts the main thread only if the rank runs there."""
        interrupts = threading.current_thread() is threading.main_thread()
        threading.Thread(target=self._run, args=(interrupts,), daemon=True).start()

    def end(self) -> None:
        """End the watch; the thread does not interrupt this rank any more.

        Raises `KeyboardInterrupt` if the thread has already sent an interrupt.
        """
        with self.lock:
            self.ended.set()
        time.sleep(0)  # an interrupt that has begun arrives here
        with suppress(RuntimeError):
            self.store.set(f"{ALIVE}/{self.launch.rank}", END_SIGN.decode())

    def _run(self, interrupts: bool) -> None:
        number, looked_at = 0, time.monotonic()
        while not self.ended.wait(SIGN_PERIOD):
            number, now = number + 1, time.monotonic()
            if now - looked_at > SIGN_TIME_LIMIT / 2:  # this machine was suspended, so old signs mean nothing
                self.signs.clear()
                self.stalls.clear()
            looked_at = now
            with suppress(RuntimeError):  # the store is gone; the next collective reports this
                self.store.set(f"{ALIVE}/{self.launch.rank}", sign_text(number))
                if (failure := self.failure_of_others(now)) is not None:
                    self._end_rank(failure, interrupts)
                    return

    def failure_of_others(self, now: float) -> RankFailed | None:
        """Return the error of a rank that failed, does not respond or is in an endless loop; None if there is none.

        The error may be about this rank, if another rank has reported it.
        """
        for rank in range(1, self.launch.size) if not self.launch.follows else (0,):
            key = f"{ALIVE}/{rank}"
            value = self.store.get(key) if self.store.check([key]) else b""
            sign = self.signs.get(rank)
            if sign is None or sign.value != value:
                self.signs[rank] = SignOfLife(value, now)
            elif value != END_SIGN and now - sign.read_at > SIGN_TIME_LIMIT:
                report_failure(self.store, rank, f"it has not responded for {SIGN_TIME_LIMIT:.0f} seconds")
        if not self.launch.follows:
            self._find_endless_loop(now)
        return reported_failure(self.store, None)

    def _find_endless_loop(self, now: float) -> None:
        """Report a rank that computes without progress while another rank waits."""
        if self.is_alone():
            self.stalls.clear()
            return
        states = {rank: sign.state for rank, sign in self.signs.items()}
        states[self.launch.rank] = own_state()
        self.stalls = {
            rank: next_stall(self.stalls.get(rank), now, state) for rank, state in states.items() if state is not None
        }
        if (loop := endless_loop(self.stalls, now)) is not None:
            report_failure(self.store, *loop)

    def _end_rank(self, failure: RankFailed, interrupts: bool) -> None:
        """Interrupt this rank with an error; end the process if the rank does not end in `END_TIME_LIMIT`."""
        with self.lock:
            if self.ended.is_set():
                return
            self.failure = failure
            if interrupts and callable(signal.getsignal(signal.SIGINT)):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        if not self.ended.wait(END_TIME_LIMIT):
            print(f"error {failure}", file=sys.stderr, flush=True)
            os._exit(failure.status)
