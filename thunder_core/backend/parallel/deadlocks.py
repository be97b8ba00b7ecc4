"""Deadlocks: a rank waits in a collective for a rank that waits in another collective, or that has ended.

A rank that waits without progress, in a program or in eager PyTorch, asks the other ranks of the group in which
collectives they wait. The rank that proves a deadlock writes the error to the store of the group. A rank that waits in
a collective cannot be interrupted, so that rank then ends its process, as the watchdog of NCCL does. The end of its
connections releases the other ranks. A rank that computes, sleeps or compiles is never reported, however long it takes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import torch.distributed as dist

from thunder_core.backend.parallel.ledger import Ledger, RecordedRun
from thunder_core.backend.parallel.positions import position_of
from thunder_core.backend.parallel.waits import (
    COLLECTIVE_KINDS,
    EAGER,
    PROGRAM,
    WORK,
    RunningProgram,
    Wait,
    base_kind,
    text_of_group,
    waits,
)
from thunder_core.foundation.errors import CollectivesDiffer
from thunder_core.tracing.analysis.collectives import first_difference

PATIENCE = 4.0  # seconds without progress after which a rank asks the other ranks
PROOF = 2.0  # seconds for which another rank must wait in the same collective
QUESTION_PAUSE = 1.0  # seconds between two questions
QUIET = 10.0  # seconds without progress after which no data is in transit to an idle process
IDLE = 0.01  # the share of a processor that an idle process uses at most; receiving data takes more
GRACE = 1.0  # seconds in which the other ranks can read an error, before the rank that found the error ends
RELEASE = 10.0  # seconds in which a rank that has read the error may end by itself
FIX = "let all ranks run the same number of steps, and call the same collectives in the same order"


@dataclass
class Standstill:
    """The time for which a value of a rank has not changed."""

    value: Any = None
    since: float = 0.0

    def read(self, value: object, now: float) -> float:
        """Compare a value with the last value, and return the seconds since the value last changed."""
        if value != self.value:
            self.value, self.since = value, now
        return now - self.since


def processor_seconds() -> float:
    """Return the processor time of this process, without the thread that calls this function."""
    return time.process_time() - time.thread_time()


@dataclass
class Search:
    """The search of this rank for deadlocks in one group.

    `own` and `standstills` are the standstills of this rank and of the other ranks. `stuck` maps another rank to the
    collectives in which it has waited for `PROOF` seconds.
    """

    own: Standstill = field(default_factory=Standstill)
    standstills: dict[int, Standstill] = field(default_factory=dict)
    stuck: dict[int, list[Wait]] = field(default_factory=dict)
    answered: dict[int, str] = field(default_factory=dict)  # the last question that each rank has answered
    asked_at: float = 0.0
    processor_before: float = 0.0

    def message(self, program: RunningProgram, now: float) -> str:
        """Return a sentence about the deadlock of a waiting program; empty if there is no proof of a deadlock."""
        ledger = program.ledger
        seconds = self.own.read((position_of(program.group), ledger.last), now)
        if seconds == 0:
            self.processor_before = processor_seconds()
        if seconds < PATIENCE or program.last_started is None:
            self.standstills.clear()
            self.stuck.clear()
            return ""
        other_ranks = self.ask(ledger, now)
        sentence = next(filter(None, (self.deadlock_with_rank(program, rank, now) for rank in other_ranks)), "")
        return sentence or self.deadlock_with_all_ranks(program, other_ranks, now)

    def ask(self, ledger: Ledger, now: float) -> list[int]:
        """Ask the other ranks in which collectives they wait, at most once per `QUESTION_PAUSE`. Return these ranks."""
        other_ranks = [rank for rank in range(ledger.size) if rank != ledger.rank]
        if now - self.asked_at > QUESTION_PAUSE:
            self.asked_at = now
            for rank in other_ranks:
                ledger.ask(rank)
        return other_ranks

    def deadlock_with_rank(self, program: RunningProgram, rank: int, now: float) -> str:
        """Return a sentence about a deadlock with another rank; empty if the other rank may just be slow."""
        ledger, sentence = program.ledger, sentence_about(program, rank)
        if has_ended(program, rank):
            return f"{sentence} has ended"
        if difference := difference_in_words(program, rank):
            return f"{sentence} {difference}"
        position, waiting = self.new_answer(ledger, rank, now)
        blocking = next((wait for wait in waiting if is_deadlock(program, position, wait)), None)
        return "" if blocking is None else f"{sentence} waits in `{blocking.kind}` at {blocking.line}"

    def new_answer(self, ledger: Ledger, rank: int, now: float) -> tuple[int, list[Wait]]:
        """Return the position of another rank, and the collectives in which it has waited for `PROOF` seconds.

        There are no collectives if the rank has not answered a new question since the last call.
        """
        latest = ledger.waits_of(rank)
        if self.answered.get(rank) == latest.question:
            return latest.position, []
        self.answered[rank] = latest.question
        self.stuck.pop(rank, None)
        if self.standstills.setdefault(rank, Standstill()).read(latest[:2], now) < PROOF:
            return latest.position, []
        self.stuck[rank] = [Wait(*values) for values in json.loads(latest.waits)]
        return latest.position, self.stuck[rank]

    def is_quiet(self, now: float) -> bool:
        """Whether this process has received no data for so long that no data can be in transit."""
        seconds = now - self.own.since
        return seconds > QUIET and processor_seconds() - self.processor_before < IDLE * seconds

    def deadlock_with_all_ranks(self, program: RunningProgram, ranks: Sequence[int], now: float) -> str:
        """Return a sentence about a deadlock if all other ranks wait in later collectives of the group.

        These ranks have left the collective in which this rank waits, so only data in transit may end the wait. A rank
        that receives data uses the processor.
        """
        waits_of_ranks = ([wait for wait in self.stuck.get(rank, ()) if is_later(program, wait)] for rank in ranks)
        later = [waiting[0] for waiting in waits_of_ranks if waiting]
        if len(later) < len(ranks) or not self.is_quiet(now):
            return ""
        sentence = sentence_about(program, ranks[0])
        return f"{sentence} has left this collective, and waits in a later `{later[0].kind}` at {later[0].line}"


class EagerSearch(Search):
    """The search of this rank for deadlocks in one group while a function of eager PyTorch waits."""

    def message_about(self, own: Wait, ledger: Ledger, now: float) -> str:
        """Return a sentence about the deadlock of the wait `own`; empty if there is no proof of a deadlock."""
        seconds = self.own.read(own, now)
        if seconds == 0:
            self.processor_before = processor_seconds()
        if seconds < PATIENCE:
            self.standstills.clear()
            self.stuck.clear()
            return ""
        other_ranks = self.ask(ledger, now)
        for rank in other_ranks:
            position, waiting = self.new_answer(ledger, rank, now)
            for wait in waiting:
                if never_meet(own, position, wait):
                    return sentence_of_waits(own, ledger, rank, wait)
        return self.deadlock_of_all_waits(own, ledger, other_ranks, now)

    def deadlock_of_all_waits(self, own: Wait, ledger: Ledger, ranks: Sequence[int], now: float) -> str:
        """Return a sentence about a deadlock if all other ranks wait in other or later collectives of the group."""
        waits_of_ranks = ([wait for wait in self.stuck.get(rank, ()) if has_left(own, wait)] for rank in ranks)
        first_waits = [waiting[0] for waiting in waits_of_ranks if waiting]
        is_proof = len(first_waits) == len(ranks) and self.is_quiet(now)
        return sentence_of_waits(own, ledger, ranks[0], first_waits[0]) if is_proof else ""


def sentence_of_waits(own: Wait, ledger: Ledger, rank: int, wait: Wait) -> str:
    """Return a sentence about two ranks that wait in different collectives."""
    group = "" if own.group == wait.group else " of another process group"
    return (
        f"rank {ledger.rank} waits in `{own.kind}` of the process group {ledger.name!r}, but rank {rank} waits in "
        f"`{wait.kind}`{group} at {wait.line}"
    )


def never_meet(own: Wait, position: int, wait: Wait) -> bool:
    """Whether a collective of this rank can never end, given the position and the wait of another rank."""
    if own.group == wait.group:
        return own.caller == wait.caller == EAGER and is_other_collective(own, wait)
    is_ahead = own.in_main and own.caller == EAGER and position < own.position
    return is_ahead and needs_this_rank(wait)


def is_other_collective(own: Wait, wait: Wait) -> bool:
    """Whether two ranks wait in different collectives at the same position of a group."""
    kinds = {base_kind(own.kind), base_kind(wait.kind)}
    return (
        own.group == wait.group and own.position == wait.position > 0 and len(kinds) == 2 and kinds <= COLLECTIVE_KINDS
    )


def has_left(own: Wait, wait: Wait) -> bool:
    """Whether another rank waits in another collective than this rank, at the same or a later position of a group."""
    is_later = own.group == wait.group and wait.position > own.position > 0 and wait.caller != WORK
    return is_other_collective(own, wait) or (is_later and base_kind(wait.kind) in COLLECTIVE_KINDS)


def sentence_about(program: RunningProgram, rank: int) -> str:
    """Return the beginning of a sentence about another rank that a program waits for."""
    own, ledger = program.collectives[program.last_started or 0], program.ledger
    return f"rank {ledger.rank} waits in `{own}` of the process group {ledger.name!r}, but rank {rank}"


def has_ended(program: RunningProgram, rank: int) -> bool:
    """Whether another rank has ended before it started a collective that a program of this rank has started."""
    return 0 <= program.ledger.end_of(rank) < position_of(program.group)


def ended_rank(program: RunningProgram) -> str:
    """Return a sentence about a rank that has ended before a collective of a program; empty if there is none."""
    ranks = (rank for rank in range(program.ledger.size) if has_ended(program, rank))
    return next((f"{sentence_about(program, rank)} has ended" for rank in ranks), "")


def difference_in_words(program: RunningProgram, rank: int) -> str:
    """Return in words the first collective that differs in another rank's program for the same run; empty if none does.

    For example: "calls `broadcast 0 float32 8 bytes`".
    """
    run = RecordedRun(program.ledger.last, tuple(map(str, program.collectives)))
    if program.ledger.lines != run.lines:
        return ""  # another program runs inside this program
    with suppress(LookupError):
        if (lines := program.ledger.difference(rank, run)) is not None:
            line = next(islice(lines, first_difference(run.lines, lines), None), "")
            return f"calls `{line}`" if line else "calls no more collectives"
    return ""


def is_deadlock(program: RunningProgram, position: int, wait: Wait) -> bool:
    """Whether a program of this rank can never continue, given the collective in which another rank waits.

    `position` is the position of the other rank in the group of the program. In this group, the other rank waits in a
    collective that the program does not call, at a position where the program calls another collective. In another
    group, the other rank waits for this rank, and has not started the collective in which this rank waits.
    """
    own_position = position_of(program.group)
    if wait.group == text_of_group(program.group):
        is_in_program = program.ledger.position < wait.position <= own_position and wait.caller != WORK
        kinds = {base_kind(collective.kind) for collective in program.collectives}
        return is_in_program and base_kind(wait.kind) not in kinds
    return position < own_position and not program.has_several_groups and needs_this_rank(wait)


def needs_this_rank(wait: Wait) -> bool:
    """Whether the main thread of another rank waits in a collective that this rank has not started."""
    groups = list(dist.distributed_c10d._world.pg_map)
    shared = next((group for group in groups if text_of_group(group) == wait.group), None)
    return wait.in_main and wait.caller != WORK and shared is not None and position_of(shared) < wait.position


def is_later(program: RunningProgram, wait: Wait) -> bool:
    """Whether another rank waits in a later collective of the group of a program than this rank."""
    return wait.group == text_of_group(program.group) and wait.position > position_of(program.group)


def print_error(message: str, rank: int, *, is_own: bool) -> None:
    """Print the error of a deadlock, or only one line if this rank has not found the deadlock itself (`is_own`)."""
    error = CollectivesDiffer(message, fix=FIX)
    short = f"[{error.code}] rank {rank} ends: {message}"
    print(f"error {error if is_own else short}", file=sys.stderr, flush=True)


class ReportedDeadlock(NamedTuple):
    """A reported deadlock.

    `message` is a sentence about the deadlock, and `waiting` are the waits of this rank. This rank ends its process at
    the time `end_at` if it still waits. `is_own` says whether this rank found the deadlock.
    """

    message: str
    waiting: list[Wait]
    end_at: float
    is_own: bool


@dataclass
class DeadlockWatch:
    """The search for deadlocks in all programs that run in this process; `end` ends the process with a status."""

    programs: dict[object, list[RunningProgram]] = field(default_factory=dict)
    searches: dict[int, Search] = field(default_factory=dict)  # by ledger
    eager_searches: dict[int, EagerSearch] = field(default_factory=dict)  # by ledger
    reports: dict[int, ReportedDeadlock] = field(default_factory=dict)  # by ledger
    end: Callable[[int], Any] = os._exit

    def running(self) -> list[RunningProgram]:
        """Return the programs that run now, each with one of its groups."""
        return [program for programs in list(self.programs.values()) for program in programs]

    def waits_text(self) -> str:
        """Return the collectives in which this process waits, for other ranks.

        A program with several groups is left out, because it is not known for which group the program waits.
        """
        return json.dumps(waits([program for program in self.running() if not program.has_several_groups]))

    def look(self, groups: Sequence[tuple[Any, Ledger]]) -> None:
        """Search for deadlocks of this rank in groups with a ledger, and end the process if there is one."""
        running, now = self.running(), time.monotonic()
        # Reading the frames of threads keeps their variables alive for a moment: do so only if there is a reason.
        if not (waiting := waits(running) if running or groups else []):
            self.searches.clear()
            self.eager_searches.clear()
            return
        for program in running:
            self.search(program, now)
        for group, ledger in groups:
            self.search_eager(text_of_group(group), ledger, waiting, now)
            self.end_waiting(ledger, waiting, now)

    def search(self, program: RunningProgram, now: float) -> None:
        """Search for a deadlock of a program, and report it to the other ranks."""
        ledger = program.ledger
        if id(ledger) in self.reports:
            return
        message = self.searches.setdefault(id(ledger), Search()).message(program, now)
        if message and program.last_started is not None:
            self.report(ledger, message, f"{program.collectives[program.last_started].source}", now)

    def search_eager(self, group: str, ledger: Ledger, waiting: Sequence[Wait], now: float) -> None:
        """Search for a deadlock of a collective of eager PyTorch in a group, and report it to the other ranks."""
        own = next((wait for wait in waiting if wait.group == group and wait.caller != PROGRAM), None)
        if own is None or id(ledger) in self.reports:
            self.eager_searches.pop(id(ledger), None)
            return
        message = self.eager_searches.setdefault(id(ledger), EagerSearch()).message_about(own, ledger, now)
        if message:
            self.report(ledger, message, own.line, now)

    def report(self, ledger: Ledger, message: str, line: str, now: float) -> None:
        """Write a deadlock with this rank's line to the store.

        If no other rank wrote one before, this rank ends soon.
        """
        own = f"{message} (rank {ledger.rank}: {line})"
        ledger.report_deadlock(own)
        if ledger.deadlock() == own:
            self.reports[id(ledger)] = ReportedDeadlock(own, waits(self.running()), now + GRACE, is_own=True)

    def end_waiting(self, ledger: Ledger, waiting: list[Wait], now: float) -> None:
        """End the process with the error of a reported deadlock, if this rank still waits in the same collectives."""
        report = self.reports.get(id(ledger))
        if report is None and (message := ledger.deadlock()):
            report = self.reports[id(ledger)] = ReportedDeadlock(message, waiting, now + RELEASE, is_own=False)
            if not self.programs:  # the collective of eager PyTorch raises an error of its own
                print_error(message, ledger.rank, is_own=False)
        if report is not None and report.waiting == waiting and now > report.end_at:
            print_error(report.message, ledger.rank, is_own=report.is_own)
            sys.stdout.flush()
            self.end(CollectivesDiffer.status)

    def message_of(self, ledger: Ledger) -> str:
        """Return the deadlock that was reported in a group; empty if there is none."""
        report = self.reports.get(id(ledger))
        return "" if report is None else report.message
