"""Offers: which lines of a trace may become regions, where these begin and end, and what they return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from thunder_core.analysis.aliasing import alias_sets, is_view
from thunder_core.analysis.grad_mode import followed_by_autograd, may_be_recorded
from thunder_core.ir.proxy import Proxy, TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import Trace
from thunder_core.lower.chains import Gathered, Limits, gathered
from thunder_core.lower.cuts import divided, is_called
from thunder_core.lower.region import Stretch, operations_of, stretch
from thunder_core.lower.updates import is_update, stands_apart

Fuses = Callable[[BoundSymbol], bool]
Places = Iterable[tuple[range, Stretch]]


@dataclass(frozen=True)
class Offer:
    """Lines, in an order that may be another than the trace's, and the regions among them with their places.

    `gathered` are those for whose sake lines changed their places.
    """

    lines: tuple[BoundSymbol, ...]
    stretches: tuple[tuple[range, Stretch], ...]
    chains: Collection[range]

    @property
    def gathered(self) -> Places:
        """See above."""
        return [(places, one) for places, one in self.stretches if places in self.chains]


def offered(trace: Trace, fuses: Fuses, *, updates: bool, spared: Collection[str] = ()) -> Offer:
    """Every region of a trace that is worth a kernel, of the lines that an executor fuses.

    With `updates` regions may write to what they are given. What then gets another place writes to no name of `spared`.
    Regions that compute the same return the same: whatever of it is read later behind any of them.
    """
    lines = _Lines(trace, fuses, updates)
    known = lines.gathered(spared)
    last_read = _last_reads(known.lines, trace.outputs)
    places = [*_groups(known, lines, last_read)]
    groups = [one for one in places if _is_worthwhile(known.lines[one.start : one.stop])]
    found = [(one, stretch(known.lines[one.start : one.stop])) for one in groups]
    returned: dict[str, set[str]] = {}
    for one, part in found:
        read = {name for name, proxy in part.made.items() if last_read[proxy.name] >= one.stop}
        returned.setdefault(part.region.body, set()).update(read)
    whole = tuple((one, part.returning(returned[part.region.body])) for one, part in found)
    return Offer(known.lines, whole, frozenset(known.chains))


class _Lines:
    """Which lines of a trace can move into a region: unclaimed, without effects, away from what others have to see."""

    def __init__(self, trace: Trace, fuses: Fuses, updates: bool) -> None:
        self.trace = trace
        self.fuses = fuses
        self.updates = updates
        self.writes = any(line.mutates for line in trace.bound_symbols)
        made = {proxy.name for line in trace.bound_symbols for proxy in line.defines}
        followed = followed_by_autograd(trace)
        self.followed = followed & made  # autograd has to see it being made; regions are opaque to it
        self.known = alias_sets(trace.bound_symbols, trace.aliases) if self.writes else alias_sets(())
        self.written = {self.known.representative(name) for line in trace.bound_symbols for name in line.mutates}
        pairs = zip(trace.bound_symbols, may_be_recorded(trace, followed), strict=True)
        self.recorded = {id(line) for line, found in pairs if found}

    def gathered(self, spared: Collection[str]) -> Gathered:
        """The lines, chains of updates together."""
        lines = self.trace.bound_symbols
        if not (self.updates and self.writes):
            return Gathered(lines)
        reads = Counter(proxy.name for line in lines for proxy in line.inputs)
        reads.update(proxy.name for proxy in self.trace.outputs)
        return gathered(lines, Limits(self.takes, self._divides, spared, self.known, self.written, reads))

    def takes(self, line: BoundSymbol) -> bool:
        """Whether a line may be part of a region that stands apart."""
        if line.executor or line.ordered or not operations_of(line) or not self._is_unfollowed(line):
            return False
        if line.mutates:
            return self.updates and is_update(line) and self.fuses(line)
        if not line.tensors or len(line.tensors) < len(line.defines):
            return False
        return all(_is_pure(one, numbers=self.updates) for one in operations_of(line)) and self.fuses(line)

    def takes_anywhere(self, line: BoundSymbol) -> bool:
        """Whether it may be part of any region: it makes no memory that is written to, or a view of it.

        It may read such memory, since no line of a region crosses a line that writes.
        """
        return not line.mutates and not any(
            self.known.representative(proxy.name) in self.written for proxy in line.outputs
        )

    def _divides(self, line: BoundSymbol) -> bool:
        return self._is_unfollowed(line) and not line.ordered and not line.executor

    def _is_unfollowed(self, line: BoundSymbol) -> bool:
        if any(proxy.name in self.followed for proxy in (*line.inputs, *line.outputs)):
            return False
        return not line.mutates or id(line) not in self.recorded


def _groups(known: Gathered, lines: _Lines, last_read: Mapping[str, int]) -> Iterator[range]:
    """The chains, and between them the longest runs of lines that are taken, none of them across a cut."""
    borders = sorted((one.start, one.stop) for one in known.chains)
    for (_, start), (stop, end) in pairwise([(0, 0), *borders, (len(known.lines),) * 2]):
        yield from _between(range(start, stop), known.lines, lines, last_read)
        if end > stop:
            yield range(stop, end)


def _between(
    places: range, every: Sequence[BoundSymbol], lines: _Lines, last_read: Mapping[str, int]
) -> Iterator[range]:
    part = every[places.start : places.stop]
    takes = [lines.takes(line) for line in part]
    strict = [taken and lines.takes_anywhere(line) for taken, line in zip(takes, part, strict=True)]
    for run in _joined(_runs(divided(part), takes if lines.updates else strict), part):
        group = part[run.start : run.stop]
        made = (proxy.name for line in group for proxy in line.defines)
        read = {name for name in made if last_read[name] >= places.start + run.stop}
        apart = not lines.updates or stands_apart(group, read, lines.known, lines.written)
        for one in [run] if apart else _runs([run], strict):
            yield range(one.start + places.start, one.stop + places.start)


def _joined(runs: Iterable[range], lines: Sequence[BoundSymbol]) -> Iterator[range]:
    """The runs without updates of and by nothing that is made in them, which would only stand beside the rest."""
    for run in runs:
        start, made = run.start, set[str]()
        for place in run:
            line = lines[place]
            if line.mutates and not any(proxy.name in made for proxy in line.inputs):
                yield from [range(start, place)] if place > start else []
                start, made = place + 1, set()
            made.update(proxy.name for proxy in line.outputs)
        yield from [range(start, run.stop)] if run.stop > start else []


def _runs(divisions: Iterable[range], takes: Sequence[bool]) -> Iterator[range]:
    for division in divisions:
        start = division.start
        for place in division:
            if not takes[place]:
                if place > start:
                    yield range(start, place)
                start = place + 1
        if division.stop > start:
            yield range(start, division.stop)


def _last_reads(lines: Sequence[BoundSymbol], returned: Iterable[Proxy]) -> dict[str, int]:
    """Where each name is read last; what is returned is read behind the last line."""
    found = {proxy.name: place for place, line in enumerate(lines) for proxy in line.defines}
    for place, line in enumerate(lines):
        found.update((proxy.name, place) for proxy in line.inputs)
    found.update((proxy.name, len(lines)) for proxy in returned)
    return found


def _is_pure(operation: BoundSymbol, numbers: bool) -> bool:
    """Whether an aten operation only computes and writes nothing. (Shapes that depend on data never come this far.)"""
    target = operation.symbol.target
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    proxies = (*operation.inputs, *operation.outputs)
    return all(_is_strided(proxy) or (numbers and type(proxy) is Proxy) for proxy in proxies)


def _is_strided(proxy: Proxy) -> bool:
    return isinstance(proxy, TensorProxy) and len(proxy.stride) == len(proxy.shape)


def _is_worthwhile(group: Sequence[BoundSymbol]) -> bool:
    """Whether a compiler has something to write: more than one operation that is neither called nor a view."""
    written = [one for line in group for one in operations_of(line) if not (is_called(one) or is_view(one))]
    return len(written) > 1
