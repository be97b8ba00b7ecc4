"""Agreement: before a program first runs, the ranks of each of its groups compare the collectives of their programs.

Ranks whose collectives differ would wait for each other forever, or compute with each other's numbers. Each rank writes
the collectives of a program to the store of the group, and reads those of the others. A rank that is not there within
`SECONDS` is waited for by the collectives themselves; it compares when it comes.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import wraps
from itertools import zip_longest
from typing import Any, NoReturn

import torch.distributed as dist

from thunder_core.foundation.errors import CollectivesDiffer, SourceLine
from thunder_core.tracing.analysis.collectives import Collective, collectives_of, groups_of
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.collectives import registered_group

SECONDS = 10.0
FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.05  # seconds between two looks at the store
OPT_OUT = "THUNDER_COMPARE_COLLECTIVES"  # an environment variable, which is "0" where ranks are not to compare
PREFIX = "thunder_collectives"
NOTHING = "no more collectives"


def entry_of(collectives: Sequence[Collective]) -> str:
    """The entry of a program: the function of its first collective, and a line for each."""
    source = collectives[0].source
    return "\n".join((source.function if source else "", *map(str, collectives)))


def lines_of(entry: str) -> list[str]:
    """The lines of an entry for its collectives."""
    return entry.splitlines()[1:]


def digest(text: str) -> str:
    """A short text that stands for another in a key of a store."""
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass
class Ledger:
    """The programs that the ranks of a group have published, numbered by rank.

    An entry is the function that the first collective is called in, and a line for each collective.
    """

    group: Any
    rank: int = field(init=False)
    store: Any = field(init=False)
    entries: set[str] = field(default_factory=set)  # of this rank
    places: dict[int, int] = field(default_factory=dict)  # how many programs of each other rank were compared

    def __post_init__(self) -> None:
        self.rank = self.group.rank()
        self.store = dist.PrefixStore(PREFIX, dist.distributed_c10d._get_process_group_store(self.group))  # type: ignore[attr-defined]
        self._count = 0

    def publish(self, entry: str) -> None:
        """Write the collectives of a program of this rank."""
        self.entries.add(entry)
        self.store.set(f"{self.rank}/{self._count}", entry)
        self.store.set(f"{self.rank}/has/{digest(entry)}", "1")
        self._count += 1

    def other_entry(self, rank: int, entry: str) -> str | None:
        """The entry of another rank with other collectives than this one's; None where that rank has the same ones.

        A rank may trace a function again that it has traced before, with the same collectives, while the others do not:
        such entries are passed over. Raises `LookupError` where the other rank has not published enough to tell.
        """
        if self.store.check([f"{rank}/has/{digest(entry)}"]):
            return None
        while self.store.check([key := f"{rank}/{self.places.get(rank, 0)}"]):
            other: str = self.store.get(key).decode()
            self.places[rank] = self.places.get(rank, 0) + 1
            if lines_of(other) == lines_of(entry):
                return None
            if other not in self.entries:
                return other
        raise LookupError


_ledgers: dict[str, Ledger] = {}


def ledger_of(name: str) -> Ledger | None:
    """The ledger of a group; None for a group of one rank, and for one whose store cannot be asked."""
    group = registered_group(name)
    if group is None or group.size() == 1:
        return None
    ledger = _ledgers.get(name)
    if ledger is None or ledger.group is not group:
        try:
            ledger = Ledger(group)
            ledger.store.check(["0/0"])
        except (RuntimeError, KeyError, ValueError):  # a group of a test's own, without a store
            return None
        _ledgers[name] = ledger
    return ledger


def compare(collectives: Sequence[Collective]) -> None:
    """Publish the collectives of a program; raises `CollectivesDiffer` where another rank has others."""
    groups = groups_of(collectives)
    ledgers = {name: ledger for name in groups if (ledger := ledger_of(name)) is not None}
    entries = {name: entry_of(groups[name]) for name in ledgers}
    for name, ledger in ledgers.items():
        ledger.publish(entries[name])
    deadline = time.monotonic() + SECONDS
    for name, ledger in ledgers.items():
        for rank in range(ledger.group.size()):
            if rank != ledger.rank:
                require_same(ledger, rank, entries[name], groups[name], deadline)


def require_same(ledger: Ledger, rank: int, entry: str, collectives: Sequence[Collective], deadline: float) -> None:
    """Raise `CollectivesDiffer` where another rank has published other collectives; wait for it until a deadline."""
    pause = FIRST_PAUSE
    while True:
        try:
            other = ledger.other_entry(rank, entry)
        except LookupError:
            if time.monotonic() > deadline:
                return
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            continue
        if other is None:
            return
        raise_difference(ledger, rank, lines_of(other), collectives)


def raise_difference(ledger: Ledger, rank: int, others: Sequence[str], collectives: Sequence[Collective]) -> NoReturn:
    """Raise `CollectivesDiffer` for the first collective in which two ranks differ."""
    pairs = zip_longest(collectives, others)
    place, (own, other) = next((place, pair) for place, pair in enumerate(pairs) if str(pair[0]) != pair[1])
    where: SourceLine | None = (own or collectives[-1]).source
    raise CollectivesDiffer(
        f"the compiled programs of the ranks differ: collective {place + 1} of the process group "
        f"{ledger.group.group_name!r} is `{own or NOTHING}` on rank {ledger.rank} and `{other or NOTHING}` on rank "
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
    is_compared = False

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        nonlocal is_compared
        if not is_compared:
            compare(collectives)
            is_compared = True
        return function(*args, **kwargs)

    return run
