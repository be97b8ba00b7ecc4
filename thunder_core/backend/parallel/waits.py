"""Find the collectives in which the threads of this process wait now, from the frames of the threads.

Threads wait in programs of Thunder, in functions of `torch.distributed`, or in the method `wait` of a `Work`. The waits
of all ranks are compared to find deadlocks.
"""

from __future__ import annotations

import linecache
import re
import sys
import threading
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from thunder_core.backend.parallel.ledger import Ledger
from thunder_core.backend.parallel.positions import position_of
from thunder_core.backend.parallel.thread_stacks import StackLine, thread_stacks
from thunder_core.tracing.analysis.collectives import Collective

C10D = dist.distributed_c10d.__file__ if dist.is_available() else ""
TORCH = str(Path(torch.__file__).parent)
GENERATED_PREFIX = "<thunder "  # the beginning of the file names of printed programs
# A line of a printed program that contains one of these strings waits for a collective.
WAIT_TEXTS = ("wait_tensor(", "wait_tensor.default(", "thunder_c10d.")
EAGER, PROGRAM, WORK = "eager", "program", "work"  # the values of `Wait.caller`
WAIT_CALL = re.compile(r"(\w+)\.wait\(")
# The collectives by their numbers in the C++ enumeration `OpType`, which `Work._get_op_type` returns.
OPERATIONS = {
    0: "broadcast",
    1: "all_reduce",
    2: "all_reduce_coalesced",
    3: "reduce",
    4: "all_gather",
    5: "all_gather_into_tensor",
    6: "all_gather_coalesced",
    7: "gather",
    8: "scatter",
    9: "reduce_scatter",
    10: "all_to_all_single",
    11: "all_to_all",
    15: "barrier",
    16: "reduce_scatter_tensor",
}
COLLECTIVE_KINDS = {
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "barrier",
}
# The suffixes of a collective's name that only describe the form of its tensors.
FORM_SUFFIXES = re.compile("(_coalesced|_into_tensor|_tensor|_single|_list)+$")


class RunningProgram(NamedTuple):
    """A program that runs now, with one of its process groups and the program's collectives in this group."""

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
    """A collective in which a thread waits: its name (`kind`), its process group and its line of code.

    `position` is the number of collectives that this rank has called in the group. `caller` is the code that waits: an
    `EAGER` function, a `PROGRAM`, or the method `wait` of a `WORK`. A thread that waits for a `WORK` may have started
    further collectives, so `position` may be larger than at the start of the collective. `in_main` is True if the main
    thread waits. Other threads wait in parallel to the training, for example to write checkpoints.
    """

    group: str
    position: int
    kind: str
    line: str
    caller: str = EAGER
    in_main: bool = True


def base_kind(kind: str) -> str:
    """Return the name of a collective without the form of its tensors: `all_gather` for `all_gather_into_tensor`."""
    return FORM_SUFFIXES.sub("", kind)


def text_of_group(group: Any) -> str:
    """Return a text with the name and the ranks of a group, by which ranks recognize the same group."""
    return f"{group.group_name} {dist.get_process_group_ranks(group)}"


def waits(running: Sequence[RunningProgram]) -> list[Wait]:
    """Return the collectives in which the threads of this process wait now."""
    current_waits: list[Wait] = []
    main = threading.main_thread().ident
    for thread, stack in thread_stacks().items():
        if waits_in_program(stack):
            waits_of_thread = [wait for program in running for wait in program_wait(program)]
        else:
            waits_of_thread = eager_wait(thread, stack) or work_wait(thread, stack)
        current_waits += [wait._replace(in_main=thread == main) for wait in waits_of_thread]
    return current_waits


def waits_in_program(stack: Sequence[StackLine]) -> bool:
    """Whether a thread is at a line of a printed program that waits for a collective."""
    in_program = next((line for line in stack if line.file.startswith(GENERATED_PREFIX)), None)
    if in_program is None:
        return False
    return any(text in linecache.getline(in_program.file, in_program.number) for text in WAIT_TEXTS)


def eager_wait(thread: int, stack: Sequence[StackLine]) -> list[Wait]:
    """Return the collective that a thread in a function of `torch.distributed` waits for; empty for other functions."""
    if stack[0].file != C10D:
        return []
    innermost = innermost_frame(thread, stack[0])
    if innermost is None or "group" not in innermost.f_locals:
        return []
    group = innermost.f_locals["group"] or dist.group.WORLD
    if group is None:  # the thread creates or destroys the default group
        return []
    caller = next((line for line in stack if not line.file.startswith(TORCH)), stack[0])
    return [Wait(text_of_group(group), position_of(group), stack[0].function, str(caller))]


def innermost_frame(thread: int, line: StackLine) -> FrameType | None:
    """Return the innermost frame of a thread that waits at a line; None if the thread has left the line."""
    frame = sys._current_frames().get(thread)
    if frame is None or (frame.f_code.co_filename, frame.f_lineno) != (line.file, line.number):
        return None
    return frame


def work_wait(thread: int, stack: Sequence[StackLine]) -> list[Wait]:
    """Return the collective of the `Work` for which a thread waits; empty if the thread waits for no known `Work`.

    A `Work` has no reference to its group, so the group is known only if the process has a single group.
    """
    groups = list(dist.distributed_c10d._world.pg_map) if dist.is_available() else []
    if len(groups) != 1 or WAIT_CALL.search(linecache.getline(stack[0].file, stack[0].number)) is None:
        return []
    innermost = innermost_frame(thread, stack[0])
    work = None if innermost is None else waited_object(innermost)
    if not isinstance(work, dist.Work):
        return []
    kind = OPERATIONS.get(work._get_op_type())  # type: ignore[attr-defined]
    if kind is None:
        return []
    return [Wait(text_of_group(groups[0]), position_of(groups[0]), kind, str(stack[0]), WORK)]


def waited_object(frame: FrameType) -> Any:
    """Return the object whose method `wait` a frame calls now; None for a call other than `variable.wait(...)`."""
    line, end_line, start, end = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
    if line is None or line != end_line:
        return None
    text = linecache.getline(frame.f_code.co_filename, line).encode()[start:end].decode(errors="replace")
    called = WAIT_CALL.match(text)
    return None if called is None else frame.f_locals.get(called[1], frame.f_globals.get(called[1]))


def program_wait(program: RunningProgram) -> list[Wait]:
    """Return the last collective that a program has started in its group; empty before the first collective."""
    if program.last_started is None:
        return []
    collective = program.collectives[program.last_started]
    line = f"{collective.source or 'a program'}"
    return [Wait(text_of_group(program.group), position_of(program.group), collective.kind, line, PROGRAM)]
