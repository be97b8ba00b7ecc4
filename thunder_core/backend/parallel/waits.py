"""The collectives in which the threads of this process wait: in programs, and in functions of `torch.distributed`."""

from __future__ import annotations

import linecache
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from thunder_core.backend.parallel.ledger import Ledger
from thunder_core.backend.parallel.positions import position_of
from thunder_core.tracing.analysis.collectives import Collective

C10D = dist.distributed_c10d.__file__ if dist.is_available() else ""
TORCH = str(Path(torch.__file__).parent)
GENERATED = "<thunder "
WAITING = ("wait_tensor(", "wait_tensor.default(", "thunder_c10d.")  # in a line of a printed program
SUFFIXES = re.compile("(_coalesced|_into_tensor|_tensor|_single|_list)+$")


class Running(NamedTuple):
    """A program that runs now, and the program's collectives in one of its groups."""

    group: Any
    ledger: Ledger
    collectives: Sequence[Collective]
    has_several_groups: bool

    @property
    def last_started(self) -> int | None:
        """The index of the last collective that the program has started; None before the first."""
        started = position_of(self.group) - self.ledger.position
        return min(started, len(self.collectives)) - 1 if started > 0 else None


class Wait(NamedTuple):
    """A collective in which a thread waits: its group, the position of the group, and its kind and line."""

    group: str
    position: int
    kind: str
    line: str


def base_kind(kind: str) -> str:
    """Return a kind of collectives without the form of its tensors: `all_gather` for `all_gather_into_tensor`."""
    return SUFFIXES.sub("", kind)


def text_of_group(group: Any) -> str:
    """Return the name and the ranks of a group, which are the same on all ranks only for the same group."""
    return f"{group.group_name} {dist.get_process_group_ranks(group)}"


def frames_outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and the frames that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def waits(running: Sequence[Running]) -> list[Wait]:
    """Return the collectives in which the threads of this process wait now."""
    found: list[Wait] = []
    for innermost in list(sys._current_frames().values()):
        if innermost.f_code.co_filename == C10D:
            found += eager_wait(innermost)
        elif waits_in_program(innermost):
            found += [wait for program in running for wait in program_wait(program)]
    return found


def waits_in_program(innermost: FrameType) -> bool:
    """Whether a thread is at a line of a printed program that waits for a collective."""
    for frame in frames_outwards(innermost):
        if frame.f_code.co_filename.startswith(GENERATED):
            line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
            return any(text in line for text in WAITING)
    return False


def eager_wait(innermost: FrameType) -> list[Wait]:
    """Return the collective of a function of `torch.distributed` in which a thread waits; empty for other functions."""
    if "group" not in innermost.f_locals:
        return []
    group = innermost.f_locals["group"] or dist.group.WORLD
    if group is None:  # the thread creates or destroys the default group
        return []
    outside = (frame for frame in frames_outwards(innermost) if not frame.f_code.co_filename.startswith(TORCH))
    caller = next(outside, innermost)
    line = f"{caller.f_code.co_filename}:{caller.f_lineno}"
    return [Wait(text_of_group(group), position_of(group), innermost.f_code.co_name, line)]


def program_wait(program: Running) -> list[Wait]:
    """Return the last collective that a program has started in a group; empty before the first."""
    if program.last_started is None:
        return []
    collective = program.collectives[program.last_started]
    line = f"{collective.source or 'a program'}"
    return [Wait(text_of_group(program.group), position_of(program.group), collective.kind, line)]
