"""Agreement: before a program first runs, the ranks of each of its groups compare the collectives of their programs.

Ranks with different collectives would wait for each other forever, or compute with wrong numbers. Each rank writes the
collectives of a program to the store of the group, with the position of the first collective: the number of collectives
that the group has begun, in programs and in eager PyTorch. A rank that finds another program at the same position
raises an error. If another rank has written nothing for this position within `SECONDS`, the rank runs its collectives,
which wait for that rank. The other rank compares when it arrives, and may then be the only rank that raises.

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
from typing import Any, NoReturn
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
    """A program that a rank has published: its text, and the position of its first collective in the group."""

    text: str
    position: int

    @property
    def lines(self) -> list[str]:
        """The lines of the collectives."""
        return self.text.splitlines()[1:]


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
    published_count: int = 0
    # The programs that were read, by rank.
    others: defaultdict[int, list[PublishedProgram]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self, group_store: Any) -> None:
        c10d: Any = dist.distributed_c10d
        prefix = c10d.PrefixStore(PREFIX, group_store)
        self.store = c10d.PrefixStore(str(prefix.add(f"{self.rank}/ledgers", 1)), prefix)

    def publish(self, text: str, position: int) -> PublishedProgram:
        """Write the collectives of a program of this rank."""
        self.store.set(f"{self.rank}/{self.published_count}", f"{position}\n{text}")
        self.published_count += 1
        return PublishedProgram(text, position)

    def read(self, rank: int) -> list[PublishedProgram]:
        """Return all programs that another rank has published so far."""
        entries = self.others[rank]
        while self.store.check([key := f"{rank}/{len(entries)}"]):
            position, _, text = self.store.get(key).decode().partition("\n")
            entries.append(PublishedProgram(text, int(position)))
        return entries

    def find(self, rank: int, entry: PublishedProgram) -> PublishedProgram | None:
        """Return a program of another rank that differs from a program at its position; None if that rank has the same.

        A rank may trace a function again while the other ranks do not, which have published the same collectives at an
        earlier position. Raises `LookupError` if the other rank has published neither.
        """
        others = self.read(rank)
        at_position = [program for program in others if program.position == entry.position]
        if any(program.lines == entry.lines for program in at_position or others):
            return None
        if not at_position:
            raise LookupError
        return at_position[-1]


_ledgers: WeakKeyDictionary[Any, Ledger] = WeakKeyDictionary()
_runs: Counter[str] = Counter()  # how many programs began to run, by the name of a group


def position_in(name: str) -> int:
    """Return the number of collectives that a group has begun.

    Some backends count no collectives; for these it is the number of programs that began to run, with a minus sign.
    """
    with suppress(RuntimeError):  # a backend that has no such number
        if begun := registered_group(name)._get_sequence_number_for_group():
            return int(begun)
    return -_runs[name]


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
    entries = {name: ledger.publish(text_of(groups[name]), position_in(name)) for name, ledger in ledgers.items()}
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
            if (differing := ledger.find(rank, entry)) is not None:
                raise_difference(ledger, rank, differing.lines, collectives)
            return
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
