"""The ledger of a process group: the programs that its ranks run, by the position in the group's collectives."""

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
NO_WAITS = "[]"  # the text of a rank that waits in no collective
MAX_RUNS = 100  # runs that a ledger keeps for questions of other ranks


class RunKey(NamedTuple):
    """The key of a run: the number of the group's collectives before it, and the number of runs at this position.

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
    """The position of a rank, the collectives in which it waits, and the question to which it replies."""

    position: int
    waits: str
    question: str


@dataclass
class Ledger:
    """The runs of programs in a group: of this rank, and of the other ranks as far as they are published.

    A rank publishes the first run of each program, and other runs only if another rank asks for them. A group may be
    created again with the name and the store of an earlier group. A rank therefore reads only what other ranks
    published in ledgers of the same creation: `number` counts the groups with this name and store, up to this group.
    """

    name: str
    rank: int
    size: int
    group_store: InitVar[Any]
    number: int = 1
    store: Any = field(init=False)
    position: int = -1  # `position` and `attempt` are the key of the last run
    attempt: int = 0
    unpublished: deque[tuple[int, int, tuple[str, ...]]] = field(default_factory=lambda: deque(maxlen=MAX_RUNS))
    published: int = 0
    numbers: dict[tuple[str, ...], int] = field(default_factory=dict)  # of published lines
    lines: tuple[str, ...] = ()  # of the last run
    answered: bytes = b""
    lock: Lock = field(default_factory=Lock)
    # The lines of the runs that were read, by rank and key; the number of these runs; and all lines by number.
    lines_by_rank: defaultdict[int, dict[RunKey, tuple[str, ...]]] = field(default_factory=lambda: defaultdict(dict))
    counts: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    distinct_lines: defaultdict[int, list[tuple[str, ...]]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self, group_store: object) -> None:
        c10d: Any = dist.distributed_c10d
        self.store = c10d.PrefixStore(f"{PREFIX}/{self.size}/{self.number}", group_store)

    @property
    def last(self) -> RunKey:
        """The key of the last run of this rank."""
        return RunKey(self.position, self.attempt)

    def note(self, position: int, lines: tuple[str, ...]) -> None:
        """Note a run of this rank, which begins now."""
        self.attempt = self.attempt + 1 if position == self.position else 0
        self.position, self.lines = position, lines
        self.unpublished.append((position, self.attempt, lines))

    def publish(self, position: int, attempt: int, lines: tuple[str, ...]) -> None:
        """Write a run of this rank to the store; lines that were written before are written as their number."""
        text = str(RunKey(position, attempt))
        if lines in self.numbers:
            text += f" {self.numbers[lines]}"
        else:
            text = "\n".join((text, *lines))
        self.store.set(f"{self.rank}/{self.published}", text)
        self.numbers.setdefault(lines, len(self.numbers))  # after the text is in the store
        self.published += 1

    def begin(self, position: int, lines: tuple[str, ...]) -> RecordedRun:
        """Note the first run of a program, write the run to the store, and return it."""
        self.note(position, lines)
        with self.lock:
            if self.unpublished:  # unless the answering thread published it in the meantime
                self.publish(*self.unpublished.pop())
        return RecordedRun(self.last, lines)

    def answer(self, group: object, waits: Callable[[], str] = NO_WAITS.__str__) -> None:
        """Publish all runs, the position and the waits of this rank, if another rank has asked for them."""
        key = f"{self.rank}/asked"
        if not self.store.check([key]) or (question := self.store.get(key)) == self.answered:
            return
        position = position_of(group)  # before the runs are read, so that no run before the position is missing
        with self.lock:
            while self.unpublished:
                self.publish_oldest()
        waiting = waits()
        self.store.set(f"{self.rank}/at", f"{position} {question.decode()} {waiting}")
        if is_compiling() and waiting == NO_WAITS:
            self.store.set(f"{self.rank}/compiles", question)
        self.answered = question

    def compilation_of(self, rank: int) -> bytes:
        """Return the last question that another rank answered while it compiled a program; empty if there is none."""
        key = f"{rank}/compiles"
        return bytes(self.store.get(key)) if self.store.check([key]) else b""

    def end(self, group: object) -> None:
        """Publish that this rank ends, and its last position."""
        self.store.set(f"{self.rank}/ended", str(position_of(group)))

    def end_of(self, rank: int) -> int:
        """Return the position at which another rank ended; -1 if that rank has not ended."""
        key = f"{rank}/ended"
        return int(self.store.get(key)) if self.store.check([key]) else -1

    def publish_oldest(self) -> None:
        """Publish the oldest run, and keep the run for the next question if the store fails."""
        run = self.unpublished.popleft()  # first, because a run that is noted now may push the oldest run out
        try:
            self.publish(*run)
        except RuntimeError:
            if len(self.unpublished) < MAX_RUNS:
                self.unpublished.appendleft(run)
            raise

    def ask(self, rank: int) -> None:
        """Ask another rank for its runs."""
        self.store.set(f"{rank}/asked", str(self.store.add("questions", 1)))

    def read(self, rank: int) -> None:
        """Read the runs that another rank has published so far."""
        while self.store.check([key := f"{rank}/{self.counts[rank]}"]):
            head, *lines = self.store.get(key).decode().split("\n")
            key, _, number = head.partition(" ")
            if not number:
                self.distinct_lines[rank].append(tuple(lines))
            self.lines_by_rank[rank][run_key_of(key)] = self.distinct_lines[rank][int(number or -1)]
            self.counts[rank] += 1

    def waits_of(self, rank: int) -> RankWaits:
        """Return the position and the waits that another rank has published last."""
        key = f"{rank}/at"
        if not self.store.check([key]):
            return RankWaits(-1, NO_WAITS, "")
        position, question, waits = self.store.get(key).decode().split(" ", 2)
        return RankWaits(int(position), waits, question)

    def position_of(self, rank: int) -> int:
        """Return the position that another rank has published last."""
        return self.waits_of(rank).position

    def difference(self, rank: int, run: RecordedRun) -> tuple[str, ...] | None:
        """Return the different lines of another rank for the key of a run, or None if that rank agrees.

        That rank also agrees if it has passed the position with collectives of other code than compiled programs.
        Raises `LookupError` if that rank has not published enough for a decision.
        """
        position = self.position_of(rank)  # before the runs, which are published before the position
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
        """Return the error that another rank has written for a run, or an empty string."""
        key = f"differs/{run}"
        return str(self.store.get(key).decode()) if self.store.check([key]) else ""


def run_key_of(text: str) -> RunKey:
    """Return the key that a text describes."""
    position, _, attempt = text.partition("/")
    return RunKey(int(position), int(attempt))
