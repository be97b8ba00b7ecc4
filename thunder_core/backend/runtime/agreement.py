"""Agreement: before a program first runs, the ranks of each of its groups compare the collectives of their programs.

Ranks whose collectives differ would wait for each other forever, or compute with each other's numbers. Each rank writes
the collectives of a program to the store of the group, and reads those of the others. A rank that finds a difference
raises an error. A rank that finds none within `SECONDS`, since another has written nothing, runs its collectives, and
those wait: the other rank compares when it comes, and then perhaps only that rank raises.

A rank writes nothing about a program without collectives in the group: it may be a program that the others do not run.
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
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.05  # seconds between two looks at the store
OPT_OUT = "THUNDER_COMPARE_COLLECTIVES"  # an environment variable, which is "0" where ranks are not to compare
PREFIX = "thunder_collectives"
ABSTRACT = "pure virtual"  # what a store says whose class has no methods
NOTHING = "no more collectives"


def text_of(collectives: Sequence[Collective]) -> str:
    """The text of a program: the function of its first collective, and a line for each."""
    source = collectives[0].source
    return "\n".join((source.function if source else "", *map(str, collectives)))


@dataclass(frozen=True)
class PublishedProgram:
    """A program that a rank has published: its text, and the number of the run in the group at which it first ran."""

    text: str
    run: int

    @property
    def lines(self) -> list[str]:
        """The lines of the collectives."""
        return self.text.splitlines()[1:]


class DifferingProgram(NamedTuple):
    """A program of another rank that is not this rank's; if it is not certain, the same one may still come."""

    entry: PublishedProgram
    is_certain: bool


@dataclass
class Ledger:
    """The programs that the ranks of a group have published.

    A group may be made again, with the name and the store of an earlier group. Each rank counts its ledgers in the
    store, and reads what the others have published in the ledgers of the same count.
    """

    name: str
    rank: int
    size: int
    group_store: InitVar[Any]
    store: Any = field(init=False)
    own: list[PublishedProgram] = field(default_factory=list)
    # What was read, by rank.
    others: defaultdict[int, list[PublishedProgram]] = field(default_factory=lambda: defaultdict(list))
    compared_counts: Counter[int] = field(default_factory=Counter)  # how many of these were compared
    offsets: Counter[int] = field(default_factory=Counter)  # by how many runs each rank is ahead of this one

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

    def read(self, rank: int) -> list[PublishedProgram]:
        """All programs that another rank has published so far."""
        entries = self.others[rank]
        while self.store.check([key := f"{rank}/{len(entries)}"]):
            run, _, text = self.store.get(key).decode().partition("\n")
            entries.append(PublishedProgram(text, int(run)))
        return entries

    def find(self, rank: int, entry: PublishedProgram) -> DifferingProgram | None:
        """The program of another rank with other collectives than this one's; None where that rank has the same ones.

        A rank may trace a function again that it has traced before, with the same collectives, while the others do not:
        such an entry is passed over, unless the other rank is at the same run. Raises `LookupError` where the other
        rank has not published enough to tell.
        """
        is_new = entry.text not in [own.text for own in self.own if own is not entry]
        return (self.find_new if is_new else self.find_again)(rank, entry, self.read(rank))

    def find_new(self, rank: int, entry: PublishedProgram, others: list[PublishedProgram]) -> DifferingProgram | None:
        """Do as `find`, for a program that this rank has not published before."""
        known = [own.text for own in self.own]
        same = next((other for other in others if other.text == entry.text), None)
        while same is None and self.compared_counts[rank] < len(others):
            other = others[self.compared_counts[rank]]
            self.compared_counts[rank] += 1
            if other.lines == entry.lines:
                same = other
            elif other.text not in known:
                return DifferingProgram(other, is_certain=True)
        if same is None:
            return self.at_same_run(rank, entry)
        self.offsets[rank] = same.run - entry.run
        return None

    def find_again(self, rank: int, entry: PublishedProgram, others: list[PublishedProgram]) -> DifferingProgram | None:
        """Do as `find`, for a program that this rank has published before."""
        with suppress(LookupError):
            return self.at_same_run(rank, entry)
        if any(other.lines == entry.lines for other in others):
            return None
        raise LookupError

    def at_same_run(self, rank: int, entry: PublishedProgram) -> DifferingProgram | None:
        """Do as `find`, with the program of another rank at the same run; raises `LookupError` if there is none.

        The count of runs is of no help where this rank has run something in eager PyTorch, and the other a program. So
        a difference is certain only if this rank never had that program.
        """
        run = entry.run + self.offsets[rank]
        other = next((other for other in self.others[rank] if other.run == run), None)
        if other is None:
            raise LookupError
        is_known = other.text in [own.text for own in self.own]
        return None if other.lines == entry.lines else DifferingProgram(other, is_certain=not is_known)


_ledgers: WeakKeyDictionary[Any, Ledger] = WeakKeyDictionary()
_runs: Counter[str] = Counter()  # how many programs began to run, by the name of a group


def ledger_of(name: str) -> Ledger | None:
    """The ledger of a group; None for a group of one rank, and for one whose store cannot be asked."""
    group = registered_group(name)
    if group is None or group.size() == 1:
        return None
    if group not in _ledgers:
        try:
            store = dist.distributed_c10d._get_process_group_store(group)
            _ledgers[group] = Ledger(name, group.rank(), group.size(), store)
        except (KeyError, ValueError):  # a group of a test's own, without a store
            return None
        except RuntimeError as error:
            if ABSTRACT not in str(error):
                raise
            return None
    return _ledgers[group]


def compare(collectives: Sequence[Collective]) -> None:
    """Publish the collectives of a program; raises `CollectivesDiffer` where another rank has others."""
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
    """Raise `CollectivesDiffer` where another rank has published other collectives; wait for it until a deadline."""
    pause = FIRST_PAUSE
    while True:
        is_late = time.monotonic() > deadline
        with suppress(LookupError):
            finding = ledger.find(rank, entry)
            if finding is None:
                return
            if finding.is_certain or is_late:
                raise_difference(ledger, rank, finding.entry.lines, collectives)
        if is_late:
            return
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def raise_difference(ledger: Ledger, rank: int, others: Sequence[str], collectives: Sequence[Collective]) -> NoReturn:
    """Raise `CollectivesDiffer` for the first collective in which two ranks differ."""
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
    """The function of a trace, before whose first call the ranks compare the collectives of the trace."""
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
