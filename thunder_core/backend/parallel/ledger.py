"""The ledger of a process group: a record of the runs of programs that communicate in the group.

A run's position is the number of collectives that the rank called in the group before the run.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from threading import Lock
from typing import Any, NamedTuple

import torch.distributed as dist

from thunder_core.backend.parallel.compiling import is_compiling
from thunder_core.backend.parallel.positions import position_of
from thunder_core.tracing.analysis.collectives import first_difference

PREFIX = "thunder_collectives"
NO_WAITS = "[]"  # the JSON that a rank publishes if it waits in no collective
MAX_RUNS = 100  # runs that a ledger keeps for questions of other ranks


class RunKey(NamedTuple):
    """The key of a run: its position, and `attempt`, the number of earlier runs at the same position.

    A run that fails before its first collective leaves the position unchanged.
    """

    position: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.position}/{self.attempt}"


class RecordedRun(NamedTuple):
    """A run of a program: its key, and a line for each of the program's collectives in the group."""

    key: RunKey
    lines: tuple[str, ...]


class RankWaits(NamedTuple):
    """The answer of a rank to a question.

    `position` is the rank's position in the group. `waits` are the collectives in which the rank waits, as JSON, and
    `question` is the number of the answered question.
    """

    position: int
    waits: str
    question: str


@dataclass
class Ledger:
    """The runs of programs in a group: the runs of this rank, and the published runs of the other ranks.

    A rank publishes the first run of each program, and other runs only if another rank asks for them. `number`
    distinguishes groups that are created one after another with the same name, store and size: a rank only reads what
    other ranks published with the same number.
    """

    name: str
    rank: int
    size: int
    group_store: InitVar[Any]
    number: int = 1
    store: Any = field(init=False)
    position: int = -1  # the position of this rank's last run
    attempt: int = 0  # the attempt of this rank's last run
    lines: tuple[str, ...] = ()  # the lines of this rank's last run
    unpublished: deque[tuple[int, int, tuple[str, ...]]] = field(default_factory=lambda: deque(maxlen=MAX_RUNS))
    published_count: int = 0  # the number of runs that this rank has published
    line_indices: dict[tuple[str, ...], int] = field(default_factory=dict)  # the index of each published tuple of lines
    answered: bytes = b""  # the number of the last question that this rank answered
    lock: Lock = field(default_factory=Lock)  # held while runs are taken from `unpublished` and published
    # By rank: the lines of each run that this rank has read.
    lines_by_rank: defaultdict[int, dict[RunKey, tuple[str, ...]]] = field(default_factory=lambda: defaultdict(dict))
    # By rank: the number of runs that this rank has read.
    read_counts: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    # By rank: the tuples of lines that this rank has read, each once; the index in a published run refers to this list.
    distinct_lines: defaultdict[int, list[tuple[str, ...]]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self, group_store: object) -> None:
        c10d: Any = dist.distributed_c10d
        self.store = c10d.PrefixStore(f"{PREFIX}/{self.size}/{self.number}", group_store)

    @property
    def last(self) -> RunKey:
        """The key of the last run of this rank."""
        return RunKey(self.position, self.attempt)

    def note(self, position: int, lines: tuple[str, ...]) -> None:
        """Add a run of this rank, which begins now, to the ledger, without publishing it."""
        self.attempt = self.attempt + 1 if position == self.position else 0
        self.position, self.lines = position, lines
        self.unpublished.append((position, self.attempt, lines))

    def publish(self, position: int, attempt: int, lines: tuple[str, ...]) -> None:
        """Write a run of this rank to the store.

        If a run with the same lines was published before, only the index of these lines is written.
        """
        text = str(RunKey(position, attempt))
        if lines in self.line_indices:
            text += f" {self.line_indices[lines]}"
        else:
            text = "\n".join((text, *lines))
        self.store.set(f"{self.rank}/{self.published_count}", text)
        self.line_indices.setdefault(lines, len(self.line_indices))  # only after `set` succeeded
        self.published_count += 1

    def begin(self, position: int, lines: tuple[str, ...]) -> RecordedRun:
        """Note the first run of a program, publish it, and return it."""
        self.note(position, lines)
        with self.lock:
            if self.unpublished:  # otherwise, the answering thread has published the run in the meantime
                self.publish_taken(self.unpublished.pop, self.unpublished.append)
        return RecordedRun(self.last, lines)

    def answer(self, group: object, waits: Callable[[], str] = lambda: NO_WAITS) -> None:
        """Publish all runs, the position and the waits of this rank, if another rank has asked for them."""
        key = f"{self.rank}/asked"
        if not self.store.check([key]) or (question := self.store.get(key)) == self.answered:
            return
        position = position_of(group)  # Read the position first: a rank publishes its runs before its position.
        with self.lock:
            while self.unpublished:
                self.publish_taken(self.unpublished.popleft, self.unpublished.appendleft)
        waiting = waits()
        self.store.set(f"{self.rank}/at", f"{position} {question.decode()} {waiting}")
        if is_compiling() and waiting == NO_WAITS:
            self.store.set(f"{self.rank}/compiles", question)
        self.answered = question

    def compilation_of(self, rank: int) -> bytes:
        """Return the last question that the rank answered while it compiled a program; empty if there is none."""
        key = f"{rank}/compiles"
        return bytes(self.store.get(key)) if self.store.check([key]) else b""

    def end(self, group: object) -> None:
        """Publish that this rank ends, and its last position."""
        self.store.set(f"{self.rank}/ended", str(position_of(group)))

    def end_of(self, rank: int) -> int:
        """Return the position at which the rank ended; -1 if the rank has not ended."""
        key = f"{rank}/ended"
        return int(self.store.get(key)) if self.store.check([key]) else -1

    def publish_taken(
        self, take: Callable[[], tuple[int, int, tuple[str, ...]]], put_back: Callable[[Any], None]
    ) -> None:
        """Publish the run that `take` takes from `unpublished`; if the store fails, put the run back.

        The run is removed from `unpublished` first, because a run that is noted meanwhile may displace the oldest run.
        """
        run = take()
        try:
            self.publish(*run)
        except RuntimeError:
            if len(self.unpublished) < MAX_RUNS:
                put_back(run)
            raise

    def ask(self, rank: int) -> None:
        """Ask the rank for its runs."""
        self.store.set(f"{rank}/asked", str(self.store.add("questions", 1)))

    def read(self, rank: int) -> None:
        """Read the runs that the rank has published so far."""
        while self.store.check([store_key := f"{rank}/{self.read_counts[rank]}"]):
            head, *lines = self.store.get(store_key).decode().split("\n")
            run_key, _, index = head.partition(" ")
            distinct_lines = self.distinct_lines[rank]
            if not index:  # new lines: the last of the list from now on
                distinct_lines.append(tuple(lines))
            self.lines_by_rank[rank][run_key_of(run_key)] = distinct_lines[int(index or -1)]
            self.read_counts[rank] += 1

    def waits_of(self, rank: int) -> RankWaits:
        """Return the position and the waits that the rank has published last."""
        key = f"{rank}/at"
        if not self.store.check([key]):
            return RankWaits(-1, NO_WAITS, "")
        position, question, waits = self.store.get(key).decode().split(" ", 2)
        return RankWaits(int(position), waits, question)

    def position_of(self, rank: int) -> int:
        """Return the position that the rank has published last; -1 if there is none."""
        return self.waits_of(rank).position

    def difference(self, rank: int, run: RecordedRun) -> tuple[str, ...] | None:
        """Return the rank's lines at the run's position if they differ; None if the rank agrees.

        A rank that is past this position and has published no run there also agrees: it ran no program there, or its
        run was dropped (`MAX_RUNS`). Raises `LookupError` if the rank has not published enough for a decision.
        """
        position = self.position_of(rank)  # Read the position first: a rank publishes its runs before its position.
        self.read(rank)
        runs = {key: lines for key, lines in self.lines_by_rank[rank].items() if key.position == run.key.position}
        agrees = any(first_difference(run.lines, lines) is None for lines in runs.values())
        if agrees or (not runs and position > run.key.position):
            return None
        if not runs or max(runs).attempt < run.key.attempt:
            raise LookupError
        return runs[max(runs)]

    def report(self, run: RecordedRun, message: str) -> None:
        """Write the error of a run for the other ranks."""
        self.store.set(f"differs/{run.key}", message)

    def report_deadlock(self, message: str) -> None:
        """Write the error of a deadlock for the other ranks, unless a rank has written one."""
        self.store.compare_set("deadlock", "", message)

    def deadlock(self) -> str:
        """Return the error of a deadlock that a rank has written, or an empty string."""
        return str(self.store.get("deadlock").decode()) if self.store.check(["deadlock"]) else ""

    def error_of(self, run: RunKey) -> str:
        """Return the error that a rank has written for a run, or an empty string."""
        key = f"differs/{run}"
        return str(self.store.get(key).decode()) if self.store.check([key]) else ""


def run_key_of(text: str) -> RunKey:
    """Return the key that `str` of a `RunKey` describes."""
    position, _, attempt = text.partition("/")
    return RunKey(int(position), int(attempt))
