"""Order: bound symbols with groups of them in a row, each bound symbol behind what it depends on."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from thunder_core.analysis.aliasing import AliasSets
from thunder_core.ir.symbol import BoundSymbol

Group = tuple[int, ...]


def ordered(
    bsyms: Sequence[BoundSymbol], groups: Sequence[Group], aliasing: AliasSets
) -> tuple[list[Group], list[Group]]:
    """The places of bound symbols, each group in a row where its last one was, each other one as a group of its own.

    Second, the groups that cannot be in a row, as bound symbols in between depend on some of theirs and others on
    these; then the order is not whole.
    """
    grouped = {place for group in groups for place in group}
    every = [*groups, *((place,) for place in range(len(bsyms)) if place not in grouped)]
    owner = {place: number for number, group in enumerate(every) for place in group}
    edges = {(owner[one], owner[other]) for one, other in _dependencies(bsyms, aliasing)}
    before: list[set[int]] = [set() for _ in every]
    after: list[set[int]] = [set() for _ in every]
    for one, other in edges:
        if one != other:
            before[other].add(one)
            after[one].add(other)
    order = _sorted(every, before, after)
    left = set(range(len(every))) - set(order)
    ends = _sorted(every, after, before, left)
    stuck = [every[number] for number in sorted(left - set(ends)) if len(every[number]) > 1]
    return [every[number] for number in order], stuck


def _sorted(
    every: Sequence[Group], before: list[set[int]], after: list[set[int]], among: set[int] | None = None
) -> list[int]:
    """The numbers of groups behind all that is before them, otherwise by their last places; not those in circles."""
    numbers = range(len(every)) if among is None else among
    missing = {number: len(before[number] if among is None else before[number] & among) for number in numbers}
    ready = [(every[number][-1], number) for number in numbers if not missing[number]]
    heapq.heapify(ready)
    found = []
    while ready:
        _, number = heapq.heappop(ready)
        found.append(number)
        for other in after[number] & missing.keys():
            missing[other] -= 1
            if not missing[other]:
                heapq.heappush(ready, (every[other][-1], other))
    return found


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
