"""The stacks of those threads of this process that stand still, for example in a collective.

In CPython 3.11, walking the frames of a running thread can end the process by a segmentation fault, and so can
`faulthandler.dump_traceback` while C++ code creates a thread. So only the innermost frame of a thread is read, until
the thread has been at the same instruction for a while; its other frames are read then, without releasing the GIL.
"""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, repeat
from types import FrameType
from typing import NamedTuple

STILL = 0.2  # seconds after which a thread at the same instruction stands still


class StackLine(NamedTuple):
    """The line at which a frame of a thread is: its file, its number (from 1), and the name of its function."""

    file: str
    number: int
    function: str

    def __str__(self) -> str:
        """Return the file and the number of the line."""
        return f"{self.file}:{self.number}"


class Position(NamedTuple):
    """The instruction of a thread's innermost frame: the identifier of the frame and the instruction's offset."""

    frame: int
    instruction: int


@dataclass
class ThreadWatch:
    """The positions of all threads, each with the time since which the thread has been there."""

    since: dict[int, tuple[Position, float]] = field(default_factory=dict)

    def stacks(self) -> dict[int, list[StackLine]]:
        """Return the lines of each thread that stands still by its identifier, from the innermost frame outwards.

        A thread stands still if it was at the same position in a call at least `STILL` seconds ago, and in all calls
        since then.
        """
        now, frames = time.monotonic(), sys._current_frames()
        positions = {thread: Position(id(frame), frame.f_lasti) for thread, frame in frames.items()}
        known = {thread: entry for thread, entry in self.since.items() if positions.get(thread) == entry[0]}
        self.since = {thread: (position, now) for thread, position in positions.items()} | known
        still = [thread for thread, (_, since) in self.since.items() if now - since >= STILL]
        return {thread: list(map(line_of, frames_outwards(frames[thread]))) for thread in still}


def frames_outwards(frame: FrameType) -> list[FrameType]:
    """Return a frame and the frames of its callers, from the inside to the outside, read without releasing the GIL."""
    frames: list[FrameType | None] = []
    with suppress(AttributeError):  # the outermost frame has the caller None, which has no attribute `f_back`
        frames.extend(accumulate(repeat("f_back"), getattr, initial=frame))
    return [each for each in frames if each is not None]


def line_of(frame: FrameType) -> StackLine:
    """Return the line at which a frame is."""
    return StackLine(frame.f_code.co_filename, frame.f_lineno or frame.f_code.co_firstlineno, frame.f_code.co_name)


_watch = ThreadWatch()


def thread_stacks() -> dict[int, list[StackLine]]:
    """Return the stacks of the threads that stand still.

    The first call returns none, because it only notes positions.
    """
    return _watch.stacks()
