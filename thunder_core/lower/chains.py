"""Chains: all that is done, element by element, to tensors of one shape that are written to, brought together.

An optimizer does one thing to all parameters, and then the next; or all things to one parameter, with numbers worked
out in between. Here each parameter gets its lines in a row, a chain: a region that goes through its memory once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from thunder_core.analysis.aliasing import AliasSets
from thunder_core.ir.proxy import TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.lower.cuts import is_called
from thunder_core.lower.foreach import one_by_one
from thunder_core.lower.order import ordered
from thunder_core.lower.region import operations_of
from thunder_core.lower.updates import result_of, stands_apart


@dataclass(frozen=True)
class Gathered:
    """Lines in an order in which each chain has its own in a row, and where the chains are."""

    lines: tuple[BoundSymbol, ...]
    chains: tuple[range, ...] = ()


@dataclass(frozen=True)
class Limits:
    """What decides which lines get into chains: `takes` says it of a line, and no memory of `spared` is written to.

    `divides` says which lines for lists of tensors may be divided, `known` and `written` who shares memory, and what
    of it is written to; `reads` counts by name the lines that read it, with what is returned.
    """

    takes: Callable[[BoundSymbol], bool]
    divides: Callable[[BoundSymbol], bool]
    spared: Collection[str]
    known: AliasSets
    written: Collection[str]
    reads: Counter[str]

    def representatives(self, names: Collection[str]) -> set[str]:
        """The memory behind these names."""
        return {self.known.representative(name) for name in names}


def gathered(lines: Sequence[BoundSymbol], limits: Limits) -> Gathered:
    """The lines with their chains.

    No line passes one that changes a state, and none passes a product of matrices: what these make goes as soon as it
    was read.
    """
    result: list[BoundSymbol] = []
    chains: list[range] = []
    for window in _windows(lines):
        found = _Window(window, limits).gathered()
        chains += [range(one.start + len(result), one.stop + len(result)) for one in found.chains]
        result += found.lines
    return Gathered(tuple(result), tuple(chains))


def _windows(lines: Sequence[BoundSymbol]) -> Iterator[list[BoundSymbol]]:
    """The runs of lines within which lines may change places."""
    window: list[BoundSymbol] = []
    for line in lines:
        window.append(line)
        if line.ordered or line.executor or any(map(is_called, operations_of(line))):
            yield window
            window = []
    yield window


@dataclass(frozen=True)
class _Step:
    """A line, or a part of one: `of` is the place of the line."""

    line: BoundSymbol
    of: int
    is_part: bool


@dataclass(frozen=True)
class _Window:
    """Lines that may change places; those for lists of tensors are divided where every part gets into a chain."""

    lines: Sequence[BoundSymbol]
    limits: Limits

    def gathered(self) -> Gathered:
        if not any(line.mutates for line in self.lines):
            return Gathered(tuple(self.lines))
        divides = (place for place, line in enumerate(self.lines) if self.limits.divides(line))
        parts = {place: found for place in divides if (found := one_by_one(self.lines[place]))}
        spared = self.limits.representatives(self.limits.spared)
        while True:
            steps = [*self._steps(parts)]
            chains = _Joining(steps, self.limits, spared).chains()
            inside = {place for chain in chains for place in chain}
            partial = {one.of for place, one in enumerate(steps) if one.is_part and place not in inside}
            if partial:
                parts = {place: found for place, found in parts.items() if place not in partial}
                continue
            odd = self._sharing(chains, steps)
            fit = [chain for chain in chains if chain not in odd]
            order, stuck = ordered([one.line for one in steps], fit, self.limits.known)
            if not odd and not stuck:
                return _laid_out(order, steps)
            for chain in (*odd, *stuck):
                spared |= self.limits.representatives([name for place in chain for name in steps[place].line.mutates])

    def _steps(self, parts: dict[int, list[BoundSymbol]]) -> Iterator[_Step]:
        for place, line in enumerate(self.lines):
            yield from (_Step(part, place, place in parts) for part in parts.get(place, [line]))

    def _sharing(self, chains: Sequence[tuple[int, ...]], steps: Sequence[_Step]) -> set[tuple[int, ...]]:
        """The chains that would share memory with others that is written to."""
        here = Counter(proxy.name for line in self.lines for proxy in line.inputs)
        readers: dict[str, set[int]] = {}
        for place, one in enumerate(steps):
            for proxy in one.line.inputs:
                readers.setdefault(proxy.name, set()).add(place)
        found = set()
        for chain in chains:
            lines = [steps[place].line for place in chain]
            made = [proxy.name for line in lines for proxy in line.defines]
            read = [
                name for name in made if self.limits.reads[name] > here[name] or readers.get(name, set()) - set(chain)
            ]
            if not stands_apart(lines, read, self.limits.known, self.limits.written):
                found.add(chain)
        return found


def _laid_out(order: Sequence[Sequence[int]], steps: Sequence[_Step]) -> Gathered:
    lines: list[BoundSymbol] = []
    chains: list[range] = []
    for group in order:
        if len(group) > 1:
            chains.append(range(len(lines), len(lines) + len(group)))
        lines += [steps[place].line for place in group]
    return Gathered(tuple(lines), tuple(chains))


class _Joining:
    """Steps joined by the memory of one shape that some of them make or write to."""

    def __init__(self, steps: Sequence[_Step], limits: Limits, spared: Collection[str]) -> None:
        self.steps = steps
        self.limits = limits
        self.spared = spared
        self.shapes = self._shapes()
        self.parents = list(range(len(steps)))

    def chains(self) -> list[tuple[int, ...]]:
        """Each that writes, and has more than one operation, as its places in their order."""
        owned = {representative for place in self.shapes for representative in self._owned(self.steps[place].line)}
        first: dict[str, int] = {}
        for place, shape in self.shapes.items():
            line = self.steps[place].line
            of_shape = (proxy for proxy in (*line.inputs, *line.outputs) if isinstance(proxy, TensorProxy))
            representatives = {
                self.limits.known.representative(proxy.name) for proxy in of_shape if proxy.shape == shape
            }
            for representative in representatives & owned:
                self.parents[self._root(place)] = self._root(first.setdefault(representative, place))
        groups: dict[int, list[int]] = {}
        for place in self.shapes:
            groups.setdefault(self._root(place), []).append(place)
        return [tuple(group) for group in groups.values() if self._is_worthwhile(group)]

    def _shapes(self) -> dict[int, tuple[int, ...]]:
        """The places of the steps that may be joined, from the first one that writes, with what shape they make."""
        found: dict[int, tuple[int, ...]] = {}
        for place, one in enumerate(self.steps):
            shape = self._shape(one.line) if found or one.line.mutates else None
            if shape is not None:
                found[place] = shape
        return found

    def _shape(self, line: BoundSymbol) -> tuple[int, ...] | None:
        shapes = {None if (made := result_of(one)) is None else made.shape for one in operations_of(line)}
        (shape,) = shapes if len(shapes) == 1 else (None,)
        fits = shape is not None and not self.limits.representatives(line.mutates) & set(self.spared)
        return shape if fits and self.limits.takes(line) else None

    def _owned(self, line: BoundSymbol) -> set[str]:
        return self.limits.representatives([*line.mutates, *(proxy.name for proxy in line.tensors)])

    def _root(self, place: int) -> int:
        while self.parents[place] != place:
            self.parents[place] = self.parents[self.parents[place]]
            place = self.parents[place]
        return place

    def _is_worthwhile(self, group: Sequence[int]) -> bool:
        lines = [self.steps[place].line for place in group]
        return len(lines) > 1 and any(line.mutates for line in lines)
