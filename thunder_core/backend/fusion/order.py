"""Order: bound symbols with groups of them in a row, each bound symbol behind what it depends on."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from thunder_core.tracing.analysis.aliasing import AliasSets
from thunder_core.tracing.ir.symbol import BoundSymbol

Group = tuple[int, ...]


def ordered(
    bsyms: Sequence[BoundSymbol], groups: Sequence[Group], aliasing: AliasSets
) -> tuple[list[Group], list[Group]]:
    """The places of bound symbols, each group in a row where its last one was, each other one as a group of its own.

    The second list has the groups that cannot be in a row, since bound symbols in between depend on some of theirs, and
    others of theirs on these; the order then lacks them.
    """
    grouped = {place for group in groups for place in group}
    every = [*groups, *((place,) for place in range(len(bsyms)) if place not in grouped)]
    owner = {place: number for number, group in enumerate(every) for place in group}
    before: dict[int, set[int]] = {number: set() for number in range(len(every))}
    after: dict[int, set[int]] = {number: set() for number in range(len(every))}
    for earlier, later in ((owner[one], owner[other]) for one, other in _dependencies(bsyms, aliasing)):
        if earlier != later:
            before[later].add(earlier)
            after[earlier].add(later)
    order = _sorted(every, before)
    left = before.keys() - set(order)
    behind_cycles = _sorted(every, {number: after[number] & left for number in left})
    stuck = [every[number] for number in sorted(left - set(behind_cycles)) if len(every[number]) > 1]
    return [every[number] for number in order], stuck


def _sorted(every: Sequence[Group], before: Mapping[int, Collection[int]]) -> list[int]:
    """The numbers of groups, each behind those `before` it and else by their last places; none that is on a cycle.

    What comes behind a cycle is not among them either.
    """
    sorter = TopologicalSorter(before)
    with suppress(CycleError):  # it then gives what the cycles do not hold up
        sorter.prepare()
    ready: list[tuple[int, int]] = []
    order: list[int] = []
    while True:
        for number in sorter.get_ready():
            heapq.heappush(ready, (every[number][-1], number))
        if not ready:
            return order
        _, number = heapq.heappop(ready)
        order.append(number)
        sorter.done(number)


@dataclass
class _Memory:
    """The bound symbol that wrote to some memory last, and those that have read it since."""

    writer: int | None = None
    readers: list[int] = field(default_factory=list)


def _dependencies(bsyms: Sequence[BoundSymbol], aliasing: AliasSets) -> Iterator[tuple[int, int]]:
    """Pairs of places of which the first has to come before the second."""
    makers: dict[str, int] = {}
    memory: dict[str, _Memory] = {}
    for place, bsym in enumerate(bsyms):
        written = {aliasing.representative(name) for name in bsym.mutates}
        touched = {aliasing.representative(proxy.name) for proxy in (*bsym.inputs, *bsym.outputs)} | written
        yield from ((makers[proxy.name], place) for proxy in bsym.inputs if proxy.name in makers)
        for head in touched:
            of = memory.setdefault(head, _Memory())
            if of.writer is not None:
                yield of.writer, place
            if head in written:
                yield from ((reader, place) for reader in of.readers)
                memory[head] = _Memory(place)
            else:
                of.readers.append(place)
        makers |= {proxy.name: place for proxy in bsym.defines}
