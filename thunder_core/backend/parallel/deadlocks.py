"""Deadlocks: a rank waits in a program for a rank that waits in another collective, or that has ended.

A rank that waits in a program without progress asks the other ranks of the group in which collectives they wait. The
rank that proves a deadlock writes the error to the store of the group. A rank that waits in a collective cannot be
interrupted, so that rank then ends its process, as the watchdog of NCCL does. The end of its connections releases the
other ranks. A rank that computes, sleeps or compiles is only late, however long it takes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, NamedTuple

import torch.distributed as dist

from thunder_core.backend.parallel.ledger import Ledger, RecordedRun
from thunder_core.backend.parallel.positions import position_of
from thunder_core.backend.parallel.waits import Running, Wait, base_kind, text_of_group, waits
from thunder_core.foundation.errors import CollectivesDiffer
from thunder_core.tracing.analysis.collectives import first_difference

PATIENCE = 10.0  # seconds without progress after which a rank asks the other ranks
PROOF = 5.0  # seconds for which another rank must wait in the same collective
QUESTION_PAUSE = 1.0  # seconds between two questions
IDLE = 0.01  # the share of a processor that a process without progress may use; receiving data takes more
GRACE = 2.0  # seconds in which the other ranks read an error, before the rank that found it ends
RELEASE = 10.0  # seconds in which another rank may end by itself after that
NOTHING = "no more collectives"
FIX = "let all ranks run the same number of steps, and call the same collectives in the same order"


@dataclass
class Standstill:
    """The time for which a value of a rank has not changed."""

    value: Any = None
    since: float = 0.0

    def read(self, value: Any, now: float) -> float:
        """Take a value, and return the seconds since the value last changed."""
        if value != self.value:
            self.value, self.since = value, now
        return now - self.since


def processor_seconds() -> float:
    """Return the processor time of this process, without the thread that calls this function."""
    return time.process_time() - time.thread_time()


@dataclass
class Search:
    """The search of this rank for deadlocks in one group: its own standstill, and those of the other ranks.

    `stuck` are the collectives in which another rank has waited for `PROOF` seconds.
    """

    own: Standstill = field(default_factory=Standstill)
    others: dict[int, Standstill] = field(default_factory=dict)
    stuck: dict[int, list[Wait]] = field(default_factory=dict)
    answered: dict[int, str] = field(default_factory=dict)  # the last question that each rank has answered
    asked_at: float = 0.0
    processor_before: float = 0.0

    def message(self, program: Running, now: float) -> str:
        """Return a sentence about a deadlock of a program that waits; empty if there is no proof of a deadlock."""
        ledger = program.ledger
        seconds = self.own.read((position_of(program.group), ledger.last), now)
        if seconds == 0:
            self.processor_before = processor_seconds()
        if seconds < PATIENCE or program.last_started is None:
            self.others.clear()
            self.stuck.clear()
            return ""
        others = [rank for rank in range(ledger.size) if rank != ledger.rank]
        if now - self.asked_at > QUESTION_PAUSE:
            self.asked_at = now
            for rank in others:
                ledger.ask(rank)
        found = next(filter(None, (self.of_rank(program, rank, now) for rank in others)), "")
        return found or self.of_all_ranks(program, others, now)

    def of_rank(self, program: Running, rank: int, now: float) -> str:
        """Return a sentence about a deadlock with another rank; empty if the other rank may only be late."""
        ledger, sentence = program.ledger, sentence_about(program, rank)
        if has_ended(program, rank):
            return f"{sentence} has ended"
        if (difference := different_line(program, rank)) is not None:
            return f"{sentence} calls `{difference}`"
        standing = ledger.standing_of(rank)
        if self.answered.get(rank) == standing.question:
            return ""
        self.answered[rank] = standing.question
        self.stuck.pop(rank, None)
        if self.others.setdefault(rank, Standstill()).read(standing[:2], now) < PROOF:
            return ""
        waiting = self.stuck[rank] = [Wait(*values) for values in json.loads(standing.waits)]
        blocking = next((wait for wait in waiting if is_deadlock(program, standing.position, wait)), None)
        return "" if blocking is None else f"{sentence} waits in `{blocking.kind}` at {blocking.line}"

    def of_all_ranks(self, program: Running, ranks: Sequence[int], now: float) -> str:
        """Return a sentence about a deadlock if all other ranks wait in later collectives of the group.

        These ranks have left the collective in which this rank waits, so only data that is still on the way may end
        the wait. A rank that receives data uses the processor.
        """
        waits_of_ranks = ([wait for wait in self.stuck.get(rank, ()) if is_later(program, wait)] for rank in ranks)
        later = [waiting[0] for waiting in waits_of_ranks if waiting]
        used = processor_seconds() - self.processor_before
        if len(later) < len(ranks) or used > IDLE * (now - self.own.since):
            return ""
        sentence = sentence_about(program, ranks[0])
        return f"{sentence} has left this collective, and waits in a later `{later[0].kind}` at {later[0].line}"


def sentence_about(program: Running, rank: int) -> str:
    """Return the beginning of a sentence about another rank that a program waits for."""
    own, ledger = program.collectives[program.last_started or 0], program.ledger
    return f"rank {ledger.rank} waits in `{own}` of the process group {ledger.name!r}, but rank {rank}"


def has_ended(program: Running, rank: int) -> bool:
    """Whether another rank has ended before it started a collective that a program of this rank has started."""
    return 0 <= program.ledger.end_of(rank) < position_of(program.group)


def ended_rank(program: Running) -> str:
    """Return a sentence about a rank that has ended before a collective of a program; empty if there is none."""
    ranks = (rank for rank in range(program.ledger.size) if has_ended(program, rank))
    return next((f"{sentence_about(program, rank)} has ended" for rank in ranks), "")


def different_line(program: Running, rank: int) -> str | None:
    """Return the first collective that differs in another rank's program for the same run; None if none does."""
    run = RecordedRun(program.ledger.last, tuple(map(str, program.collectives)))
    if program.ledger.lines != run.lines:
        return None  # another program runs inside this program
    with suppress(LookupError):
        if (lines := program.ledger.difference(rank, run)) is not None:
            return next(islice(chain(lines, [NOTHING]), first_difference(run.lines, lines), None))
    return None


def is_deadlock(program: Running, position: int, wait: Wait) -> bool:
    """Whether a program of this rank can never go on if another rank waits in a collective.

    `position` is the position of the other rank in the group of the program. In this group, the other rank waits
    in a collective of a kind that the program does not call, where the program calls another collective. In another
    group, the other rank waits for this rank, and has not started the collective in which this rank waits.
    """
    own_position = position_of(program.group)
    if wait.group == text_of_group(program.group):
        is_in_program = program.ledger.position < wait.position <= own_position
        kinds = {base_kind(collective.kind) for collective in program.collectives}
        return is_in_program and base_kind(wait.kind) not in kinds
    if position >= own_position or program.has_several_groups:
        return False
    groups = list(dist.distributed_c10d._world.pg_map)
    shared = next((group for group in groups if text_of_group(group) == wait.group), None)
    return shared is not None and position_of(shared) < wait.position


def is_later(program: Running, wait: Wait) -> bool:
    """Whether another rank waits in a later collective of the group of a program than this rank."""
    return wait.group == text_of_group(program.group) and wait.position > position_of(program.group)


def print_error(message: str) -> None:
    """Print the error of a deadlock."""
    print(f"error {CollectivesDiffer(message, fix=FIX)}", file=sys.stderr, flush=True)


class ReportedDeadlock(NamedTuple):
    """A deadlock that a rank has found: a sentence, the waits of this rank, and when this rank ends."""

    message: str
    waiting: list[Wait]
    end_at: float


@dataclass
class DeadlockWatch:
    """The watch of this process over the programs that run; `end` ends the process with a status."""

    programs: dict[object, list[Running]] = field(default_factory=dict)
    searches: dict[int, Search] = field(default_factory=dict)  # by ledger
    reports: dict[int, ReportedDeadlock] = field(default_factory=dict)  # by ledger
    end: Callable[[int], Any] = os._exit

    def running(self) -> list[Running]:
        """Return the programs that run now, each with one of its groups."""
        return [program for programs in list(self.programs.values()) for program in programs]

    def waits_text(self) -> str:
        """Return the collectives in which this process waits, for other ranks.

        A program with several groups is left out, because it is not known for which group the program waits.
        """
        return json.dumps(waits([program for program in self.running() if not program.has_several_groups]))

    def look(self, ledgers: Iterable[Ledger]) -> None:
        """Search for deadlocks of this rank, and end the process if there is one."""
        running, now = self.running(), time.monotonic()
        if not (waiting := waits(running)):
            self.searches.clear()
            return
        for program in running:
            self.search(program, now)
        for ledger in ledgers:
            self.end_waiting(ledger, waiting, now)

    def search(self, program: Running, now: float) -> None:
        """Search for a deadlock of a program, and report it to the other ranks."""
        ledger = program.ledger
        if id(ledger) in self.reports:
            return
        message = self.searches.setdefault(id(ledger), Search()).message(program, now)
        if message and program.last_started is not None:
            message += f" (rank {ledger.rank}: {program.collectives[program.last_started].source})"
            ledger.report_deadlock(message)
            self.reports[id(ledger)] = ReportedDeadlock(ledger.deadlock(), waits(self.running()), now + GRACE)

    def end_waiting(self, ledger: Ledger, waiting: list[Wait], now: float) -> None:
        """End the process with an error that a rank reported, unless this rank does not wait any more."""
        report = self.reports.get(id(ledger))
        if report is None and (message := ledger.deadlock()):
            report = self.reports[id(ledger)] = ReportedDeadlock(message, waiting, now + RELEASE)
            if not self.programs:  # the collective of eager PyTorch raises an error of its own
                print_error(message)
        if report is not None and report.waiting == waiting and now > report.end_at:
            print_error(report.message)
            sys.stdout.flush()
            self.end(CollectivesDiffer.status)

    def message_of(self, ledger: Ledger) -> str:
        """Return the deadlock that was reported in a group; empty if there is none."""
        report = self.reports.get(id(ledger))
        return "" if report is None else report.message
