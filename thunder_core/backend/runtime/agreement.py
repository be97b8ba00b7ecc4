"""Agreement: before a program first runs, the ranks of each of its groups compare the collectives of their programs.

Ranks with different collectives would wait for each other forever, or compute with wrong numbers. Each rank writes the
collectives of a program to the store of the group, and reads the collectives of the other ranks. A rank that finds a
difference raises an error. If another rank has written nothing within `SECONDS`, the rank runs its collectives, which
wait for that rank. The other rank compares when it arrives, and may then be the only rank that raises.

A rank writes nothing about a program without collectives in the group, because the other ranks may not run that
program.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from functools import wraps
from itertools import zip_longest
from typing import Any, NamedTuple, NoReturn
from weakref import WeakKeyDictionary

import torch.distributed as dist

from thunder_core.foundation.errors import CollectivesDiffer, SourceLine
from thunder_core.tracing.analysis.collectives import Collective, collectives_of, groups_of
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.collectives import registered_group

SECONDS = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.05  # seconds between two reads of the store
OPT_OUT = "THUNDER_COMPARE_COLLECTIVES"  # the environment variable; "0" switches the comparison off
PREFIX = "thunder_collectives"
ABSTRACT = "pure virtual"  # in the error message of a store whose class implements no methods
NOTHING = "no more collectives"


def text_of(collectives: Sequence[Collective]) -> str:
    """Return the text of a program: the function of its first collective, and a line for each collective."""
    source = collectives[0].source
    return "\n".join((source.function if source else "", *map(str, collectives)))


@dataclass(frozen=True)
class PublishedProgram:
    """A program that a rank has published: its text, and the number of the group's run at which it first ran."""

    text: str
    run: int

    @property
    def lines(self) -> list[str]:
        """The lines of the collectives."""
        return self.text.splitlines()[1:]


class DifferingProgram(NamedTuple):
    """A program of another rank that differs from this rank's.

    Unless `is_certain`, a matching program may still come.
    """

    entry: PublishedProgram
    is_certain: bool


@dataclass
class Ledger:
    """The programs that the ranks of a group have published.

    A group may be created again with the name and the store of an earlier group. Each rank therefore counts its ledgers
    in the store, and reads the programs that other ranks published in the ledger with the same number.
    """

    name: str
    rank: int
    size: int
    group_store: InitVar[Any]
    store: Any = field(init=False)
    own: list[PublishedProgram] = field(default_factory=list)
    # The programs that were read, by rank.
    others: defaultdict[int, list[PublishedProgram]] = field(default_factory=lambda: defaultdict(list))
    compared_counts: Counter[int] = field(default_factory=Counter)  # the number of compared programs, by rank
    offsets: Counter[int] = field(default_factory=Counter)  # the number of runs that each rank is ahead of this rank

    def __post_init__(self, group_store: Any) -> None:
        c10d: Any = dist.distributed_c10d
        prefix = c10d.PrefixStore(PREFIX, group_store)
        self.store = c10d.PrefixStore(str(prefix.add(f"{self.rank}/ledgers", 1)), prefix)

    def publish(self, text: str, run: int) -> PublishedProgram:
        """Write the collectives of a program of this rank."""
        entry = PublishedProgram(text, run)
        self.store.set(f"{self.rank}/{len(self.own)}", f"{run}\n{text}")
        self.own.append(entry)
        return entry

    def read(self, rank: int) -> None:
        """Read all programs that another rank has published so far."""
        entries = self.others[rank]
        while self.store.check([key := f"{rank}/{len(entries)}"]):
            run, _, text = self.store.get(key).decode().partition("\n")
            entries.append(PublishedProgram(text, int(run)))

    def find(self, rank: int, entry: PublishedProgram) -> DifferingProgram | None:
        """Return a program of another rank with different collectives; None if that rank has the same collectives.

        A rank may trace a function again with the same collectives while the other ranks do not. Such a repeated
        program is skipped, unless the other rank is at the same run. Raises `LookupError` if the other rank has not
        published enough for a decision.
        """
        is_new = entry.text not in [own.text for own in self.own if own is not entry]
        self.read(rank)
        return (self.find_new if is_new else self.find_again)(rank, entry)

    def has_same(self, rank: int, entry: PublishedProgram) -> bool:
        """Whether another rank has ever published the same collectives: the counts of runs may be misaligned."""
        return any(program.lines == entry.lines for program in self.others[rank])

    def find_new(self, rank: int, entry: PublishedProgram) -> DifferingProgram | None:
        """Do as `find` for a program that this rank has not published before."""
        others = self.others[rank]
        known = [own.text for own in self.own]
        same = next((program for program in others if program.text == entry.text), None)
        while same is None and self.compared_counts[rank] < len(others):
            program = others[self.compared_counts[rank]]
            self.compared_counts[rank] += 1
            if program.lines == entry.lines:
                same = program
            elif program.text not in known:
                return DifferingProgram(program, is_certain=True)
        if same is None:
            return self.at_same_run(rank, entry)
        self.offsets[rank] = same.run - entry.run
        return None

    def find_again(self, rank: int, entry: PublishedProgram) -> DifferingProgram | None:
        """Do as `find` for a program that this rank has published before."""
        with suppress(LookupError):
            return self.at_same_run(rank, entry)
        if self.has_same(rank, entry):
            return None
        raise LookupError

    def at_same_run(self, rank: int, entry: PublishedProgram) -> DifferingProgram | None:
        """Do as `find` with the program of another rank at the same run; raise `LookupError` if there is none.

        The run count misleads if this rank ran a call in eager PyTorch for which the other rank ran a program. A
        difference is therefore certain only if this rank never had the other rank's program.
        """
        run = entry.run + self.offsets[rank]
        program = next((program for program in self.others[rank] if program.run == run), None)
        if program is None:
            raise LookupError
        is_known = program.text in [own.text for own in self.own]
        return None if program.lines == entry.lines else DifferingProgram(program, is_certain=not is_known)


_ledgers: WeakKeyDictionary[Any, Ledger] = WeakKeyDictionary()
_runs: Counter[str] = Counter()  # how many programs began to run, by the name of a group


def ledger_of(name: str) -> Ledger | None:
    """Return the ledger of a group; None for a group of one rank, and for a group whose store cannot be queried."""
    group = registered_group(name)
    if group is None or group.size() == 1:
        return None
    if group not in _ledgers:
        try:
            store = dist.distributed_c10d._get_process_group_store(group)
            _ledgers[group] = Ledger(name, group.rank(), group.size(), store)
        except (KeyError, ValueError):  # a group that a test made without a store
            return None
        except RuntimeError as error:
            if ABSTRACT not in str(error):
                raise
            return None
    return _ledgers[group]


def compare(collectives: Sequence[Collective]) -> None:
    """Publish the collectives of a program; raise `CollectivesDiffer` if another rank has different collectives."""
    groups = groups_of(collectives)
    ledgers = {name: ledger for name in groups if (ledger := ledger_of(name)) is not None}
    entries = {name: ledger.publish(text_of(groups[name]), _runs[name]) for name, ledger in ledgers.items()}
    deadline = time.monotonic() + SECONDS
    for name, ledger in ledgers.items():
        for rank in range(ledger.size):
            if rank != ledger.rank:
                require_same(ledger, rank, entries[name], groups[name], deadline)


def require_same(
    ledger: Ledger, rank: int, entry: PublishedProgram, collectives: Sequence[Collective], deadline: float
) -> None:
    """Raise `CollectivesDiffer` if another rank has published different collectives; wait for it until a deadline."""
    pause = FIRST_PAUSE
    while True:
        is_late = time.monotonic() > deadline
        with suppress(LookupError):
            finding = ledger.find(rank, entry)
            if finding is None or (is_late and ledger.has_same(rank, entry)):
                return
            if finding.is_certain or is_late:
                raise_difference(ledger, rank, finding.entry.lines, collectives)
        if is_late:
            return
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def raise_difference(ledger: Ledger, rank: int, others: Sequence[str], collectives: Sequence[Collective]) -> NoReturn:
    """Raise `CollectivesDiffer` for the first collective that differs between two ranks."""
    pairs = zip_longest(collectives, others)
    place, (own, other) = next((place, pair) for place, pair in enumerate(pairs) if str(pair[0]) != pair[1])
    where: SourceLine | None = (own or collectives[-1]).source
    raise CollectivesDiffer(
        f"the compiled programs of the ranks differ: collective {place + 1} of the process group "
        f"{ledger.name!r} is `{own or NOTHING}` on rank {ledger.rank} and `{other or NOTHING}` on rank "
        f"{rank}",
        fix="let all ranks call the same collectives in the same order, with tensors of the same sizes and dtypes; "
        f"{OPT_OUT}=0 runs the programs without this comparison",
        where=where,
    )


def compared(function: Callable[..., Any], trace: Trace) -> Callable[..., Any]:
    """Return a trace's function that compares the collectives of the ranks before its first call."""
    collectives = collectives_of(trace)
    if not collectives or os.environ.get(OPT_OUT) == "0":
        return function
    names = tuple(groups_of(collectives))
    is_compared = False

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_compared
        for name in names:
            _runs[name] += 1
        if not is_compared:
            compare(collectives)
            is_compared = True
        return function(*args, **kwargs)

    return run
