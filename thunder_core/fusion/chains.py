"""Chains: element-wise operations on tensors of one shape that are written to, brought together.

An optimizer does one thing to all parameters, and then the next; or all things to one parameter, with numbers worked
out in between. Here each parameter gets its bound symbols in a row, a chain: a region that goes through its memory
once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from thunder_core.analysis.aliasing import AliasSets
from thunder_core.analysis.cuts import is_extern_call
from thunder_core.fusion.foreach import one_by_one
from thunder_core.fusion.order import ordered
from thunder_core.fusion.updates import result_of, stands_apart
from thunder_core.ir.proxy import TensorProxy
from thunder_core.ir.sizes import comparison_keys
from thunder_core.ir.symbol import BoundSymbol


@dataclass(frozen=True)
class Rearranged:
    """Bound symbols in an order in which those of each chain are in a row, and where the chains are."""

    bsyms: tuple[BoundSymbol, ...]
    chains: tuple[range, ...] = ()


@dataclass(frozen=True)
class Limits:
    """The conditions for getting into chains: `takes` accepts a bound symbol, and it writes to none of `excluded`.

    `divides` says which bound symbols for lists of tensors may be divided, `aliasing` and `written` who shares memory,
    and what of it is written to; `reads` counts by name the bound symbols that read it, with what is returned.
    """

    takes: Callable[[BoundSymbol], bool]
    divides: Callable[[BoundSymbol], bool]
    excluded: Collection[str]
    aliasing: AliasSets
    written: Collection[str]
    reads: Counter[str]

    def representatives(self, names: Collection[str]) -> set[str]:
        """The memory behind these names."""
        return {self.aliasing.representative(name) for name in names}


def rearranged(bsyms: Sequence[BoundSymbol], limits: Limits) -> Rearranged:
    """The bound symbols with their chains.

    No bound symbol passes one that changes a state, and none passes a product of matrices: what these make goes as soon
    as it was read.
    """
    result: list[BoundSymbol] = []
    chains: list[range] = []
    for window in _windows(bsyms):
        found = _Window(window, limits).rearranged()
        chains += [range(one.start + len(result), one.stop + len(result)) for one in found.chains]
        result += found.bsyms
    return Rearranged(tuple(result), tuple(chains))


def _windows(bsyms: Sequence[BoundSymbol]) -> Iterator[list[BoundSymbol]]:
    """The runs of bound symbols that may change places with each other."""
    window: list[BoundSymbol] = []
    for bsym in bsyms:
        window.append(bsym)
        if bsym.ordered or bsym.executor or any(map(is_extern_call, bsym.operations)):
            yield window
            window = []
    yield window


@dataclass(frozen=True)
class _Step:
    """A bound symbol, or a part of one: `of` is the place of the bound symbol."""

    bsym: BoundSymbol
    of: int
    is_part: bool


@dataclass(frozen=True)
class _Window:
    """Bound symbols that may change places; those on lists are divided where every part gets into a chain."""

    bsyms: Sequence[BoundSymbol]
    limits: Limits

    def rearranged(self) -> Rearranged:
        if not any(bsym.mutates for bsym in self.bsyms):
            return Rearranged(tuple(self.bsyms))
        divides = (place for place, bsym in enumerate(self.bsyms) if self.limits.divides(bsym))
        parts = {place: found for place in divides if (found := one_by_one(self.bsyms[place]))}
        excluded = self.limits.representatives(self.limits.excluded)
        while True:
            steps = [*self._steps(parts)]
            chains = _Joining(steps, self.limits, excluded).chains()
            inside = {place for chain in chains for place in chain}
            partial = {one.of for place, one in enumerate(steps) if one.is_part and place not in inside}
            if partial:
                parts = {place: found for place, found in parts.items() if place not in partial}
                continue
            odd = self._sharing(chains, steps)
            fit = [chain for chain in chains if chain not in odd]
            order, stuck = ordered([one.bsym for one in steps], fit, self.limits.aliasing)
            if not odd and not stuck:
                return _laid_out(order, steps)
            for chain in (*odd, *stuck):
                excluded |= self.limits.representatives([name for place in chain for name in steps[place].bsym.mutates])

    def _steps(self, parts: dict[int, list[BoundSymbol]]) -> Iterator[_Step]:
        for place, bsym in enumerate(self.bsyms):
            yield from (_Step(part, place, place in parts) for part in parts.get(place, [bsym]))

    def _sharing(self, chains: Sequence[tuple[int, ...]], steps: Sequence[_Step]) -> set[tuple[int, ...]]:
        """The chains that would share memory with others that is written to."""
        here = Counter(proxy.name for bsym in self.bsyms for proxy in bsym.inputs)
        readers: dict[str, set[int]] = {}
        for place, one in enumerate(steps):
            for proxy in one.bsym.inputs:
                readers.setdefault(proxy.name, set()).add(place)
        found = set()
        for chain in chains:
            bsyms = [steps[place].bsym for place in chain]
            made = [proxy.name for bsym in bsyms for proxy in bsym.defines]
            read = [
                name for name in made if self.limits.reads[name] > here[name] or readers.get(name, set()) - set(chain)
            ]
            if not stands_apart(bsyms, read, self.limits.aliasing, self.limits.written):
                found.add(chain)
        return found


def _laid_out(order: Sequence[Sequence[int]], steps: Sequence[_Step]) -> Rearranged:
    bsyms: list[BoundSymbol] = []
    chains: list[range] = []
    for group in order:
        if len(group) > 1:
            chains.append(range(len(bsyms), len(bsyms) + len(group)))
        bsyms += [steps[place].bsym for place in group]
    return Rearranged(tuple(bsyms), tuple(chains))


class _Joining:
    """Steps joined by the memory of one shape that some of them make or write to."""

    def __init__(self, steps: Sequence[_Step], limits: Limits, excluded: Collection[str]) -> None:
        self.steps = steps
        self.limits = limits
        self.excluded = excluded
        self.shapes = self._shapes()
        self.parents = list(range(len(steps)))

    def chains(self) -> list[tuple[int, ...]]:
        """The chains, as places in their order: groups that write, and have more than one operation."""
        owned = {representative for place in self.shapes for representative in self._owned(self.steps[place].bsym)}
        first: dict[str, int] = {}
        for place, shape in self.shapes.items():
            bsym = self.steps[place].bsym
            of_shape = (proxy for proxy in (*bsym.inputs, *bsym.outputs) if isinstance(proxy, TensorProxy))
            representatives = {
                self.limits.aliasing.representative(proxy.name)
                for proxy in of_shape
                if comparison_keys(proxy.shape) == shape
            }
            for representative in representatives & owned:
                self.parents[self._root(place)] = self._root(first.setdefault(representative, place))
        groups: dict[int, list[int]] = {}
        for place in self.shapes:
            groups.setdefault(self._root(place), []).append(place)
        return [tuple(group) for group in groups.values() if self._is_worthwhile(group)]

    def _shapes(self) -> dict[int, tuple[Any, ...]]:
        """The places of the steps that may be joined, from the first one that writes, with what shape they make."""
        found: dict[int, tuple[int, ...]] = {}
        for place, one in enumerate(self.steps):
            shape = self._shape(one.bsym) if found or one.bsym.mutates else None
            if shape is not None:
                found[place] = shape
        return found

    def _shape(self, bsym: BoundSymbol) -> tuple[Any, ...] | None:
        made = map(result_of, bsym.operations)
        shapes = {None if result is None else comparison_keys(result.shape) for result in made}
        (shape,) = shapes if len(shapes) == 1 else (None,)
        fits = shape is not None and not self.limits.representatives(bsym.mutates) & set(self.excluded)
        return shape if fits and self.limits.takes(bsym) else None

    def _owned(self, bsym: BoundSymbol) -> set[str]:
        return self.limits.representatives([*bsym.mutates, *(proxy.name for proxy in bsym.tensors)])

    def _root(self, place: int) -> int:
        while self.parents[place] != place:
            self.parents[place] = self.parents[self.parents[place]]
            place = self.parents[place]
        return place

    def _is_worthwhile(self, group: Sequence[int]) -> bool:
        bsyms = [self.steps[place].bsym for place in group]
        return len(bsyms) > 1 and any(bsym.mutates for bsym in bsyms)
