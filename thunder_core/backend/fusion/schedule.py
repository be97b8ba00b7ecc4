"""Scheduling: an order of bound symbols in which groups are contiguous, and each bound symbol follows its inputs."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from thunder_core.tracing.analysis.aliasing import AliasSets
from thunder_core.tracing.ir.symbol import BoundSymbol

Group = tuple[int, ...]


def schedule_groups(
    bsyms: Sequence[BoundSymbol], groups: Sequence[Group], aliasing: AliasSets
) -> tuple[list[Group], list[Group]]:
    """Return the schedule as groups of indices, and the groups that cannot be made contiguous.

    A group has the position of its last member in the schedule. Indices that are in no group form groups of one. A
    group cannot be contiguous if bound symbols between its members depend on some members, and other members depend on
    these bound symbols. The schedule lacks such groups, and all groups that depend on them.
    """
    grouped = {index for group in groups for index in group}
    all_groups = [*groups, *((index,) for index in range(len(bsyms)) if index not in grouped)]
    owner = {index: number for number, group in enumerate(all_groups) for index in group}
    before: dict[int, set[int]] = {number: set() for number in range(len(all_groups))}
    after: dict[int, set[int]] = {number: set() for number in range(len(all_groups))}
    for earlier, later in ((owner[first], owner[second]) for first, second in _dependencies(bsyms, aliasing)):
        if earlier != later:
            before[later].add(earlier)
            after[earlier].add(later)
    schedule = _sort(all_groups, before)
    blocked = before.keys() - set(schedule)
    behind_cycles = _sort(all_groups, {number: after[number] & blocked for number in blocked})
    stuck = [all_groups[number] for number in sorted(blocked - set(behind_cycles)) if len(all_groups[number]) > 1]
    return [all_groups[number] for number in schedule], stuck


def _sort(all_groups: Sequence[Group], before: Mapping[int, Collection[int]]) -> list[int]:
    """Return the numbers of the groups, each after the groups `before` it, and otherwise ordered by last index.

    Groups on a cycle, and groups that depend on a cycle, are left out.
    """
    sorter = TopologicalSorter(before)
    with suppress(CycleError):  # despite the error, `get_ready` returns the groups that do not depend on a cycle
        sorter.prepare()
    ready: list[tuple[int, int]] = []
    order: list[int] = []
    while True:
        for number in sorter.get_ready():
            heapq.heappush(ready, (all_groups[number][-1], number))
        if not ready:
            return order
        _, number = heapq.heappop(ready)
        order.append(number)
        sorter.done(number)


@dataclass
class _Memory:
    """The bound symbol that wrote to a memory last, and the bound symbols that have read the memory since."""

    writer: int | None = None
    readers: list[int] = field(default_factory=list)


def _dependencies(bsyms: Sequence[BoundSymbol], aliasing: AliasSets) -> Iterator[tuple[int, int]]:
    """Yield pairs of indices `(first, second)`: the first bound symbol must run before the second."""
    makers: dict[str, int] = {}
    memory: dict[str, _Memory] = {}
    for index, bsym in enumerate(bsyms):
        written = {aliasing.representative(name) for name in bsym.mutates}
        touched = {aliasing.representative(proxy.name) for proxy in (*bsym.inputs, *bsym.outputs)} | written
        yield from ((makers[proxy.name], index) for proxy in bsym.inputs if proxy.name in makers)
        for head in touched:
            state = memory.setdefault(head, _Memory())
            if state.writer is not None:
                yield state.writer, index
            if head in written:
                yield from ((reader, index) for reader in state.readers)
                memory[head] = _Memory(index)
            else:
                state.readers.append(index)
        makers |= {proxy.name: index for proxy in bsym.defines}
