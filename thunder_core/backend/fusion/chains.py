"""Chains: element-wise operations on written tensors of one shape, brought together.

An optimizer applies each operation to all parameters before the next operation, or all operations to one parameter,
with scalar computations in between. Here, the bound symbols of each parameter are placed next to each other as a chain:
a region that passes through the parameter's memory once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from thunder_core.backend.fusion.foreach import one_by_one
from thunder_core.backend.fusion.order import order_groups
from thunder_core.backend.fusion.updates import result_of, shares_written_storage_by_one_name
from thunder_core.tracing.analysis.aliasing import AliasSets
from thunder_core.tracing.analysis.cuts import is_extern_call
from thunder_core.tracing.analysis.disjoint_sets import DisjointSets
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import comparison_keys
from thunder_core.tracing.ir.symbol import BoundSymbol


@dataclass(frozen=True)
class ChainOrder:
    """Bound symbols in an order with the members of each chain next to each other, and the ranges of the chains."""

    bsyms: tuple[BoundSymbol, ...]
    chains: tuple[range, ...] = ()


@dataclass(frozen=True)
class ChainConditions:
    """The conditions for joining chains: `takes` accepts the bound symbol, and it writes to none of `excluded`.

    `divides` says which bound symbols for lists of tensors may be split. `aliasing` says which names share memory, and
    `written` which memory is written to. `reads` counts the reads of each name, including returned names.
    """

    takes: Callable[[BoundSymbol], bool]
    divides: Callable[[BoundSymbol], bool]
    excluded: Collection[str]
    aliasing: AliasSets
    written: Collection[str]
    reads: Counter[str]

    def representatives(self, names: Collection[str]) -> set[str]:
        """Return the representatives of the memory behind these names."""
        return {self.aliasing.representative(name) for name in names}


def form_chains(bsyms: Sequence[BoundSymbol], conditions: ChainConditions) -> ChainOrder:
    """Move the bound symbols of each chain together.

    No bound symbol moves across a change of state, a collective or a matrix product, so that the results of a product
    are freed as soon as they were read.
    """
    result: list[BoundSymbol] = []
    chains: list[range] = []
    for window in _windows(bsyms):
        order = _Window(window, conditions).chain_order()
        chains += [range(chain.start + len(result), chain.stop + len(result)) for chain in order.chains]
        result += order.bsyms
    return ChainOrder(tuple(result), tuple(chains))


def _windows(bsyms: Sequence[BoundSymbol]) -> Iterator[list[BoundSymbol]]:
    """Yield the runs of bound symbols that may be reordered."""
    window: list[BoundSymbol] = []
    for bsym in bsyms:
        window.append(bsym)
        if bsym.keeps_position or bsym.executor or any(map(is_extern_call, bsym.operations)):
            yield window
            window = []
    yield window


@dataclass(frozen=True)
class _Step:
    """A bound symbol, or its part for one tensor of a list; `index` is the index of the bound symbol."""

    bsym: BoundSymbol
    index: int
    is_part: bool


@dataclass(frozen=True)
class _Window:
    """Bound symbols that may be reordered; a foreach operation is split if every part joins a chain."""

    bsyms: Sequence[BoundSymbol]
    conditions: ChainConditions

    def chain_order(self) -> ChainOrder:
        if not any(bsym.mutates for bsym in self.bsyms):
            return ChainOrder(tuple(self.bsyms))
        divides = (index for index, bsym in enumerate(self.bsyms) if self.conditions.divides(bsym))
        parts = {index: split for index in divides if (split := one_by_one(self.bsyms[index]))}
        excluded = self.conditions.representatives(self.conditions.excluded)
        while True:
            steps = [*self._steps(parts)]
            chains = _Joining(steps, self.conditions, excluded).chains()
            inside = {index for chain in chains for index in chain}
            partial = {step.index for number, step in enumerate(steps) if step.is_part and number not in inside}
            if partial:
                parts = {index: split for index, split in parts.items() if index not in partial}
                continue
            sharing = self._sharing(chains, steps)
            fit = [chain for chain in chains if chain not in sharing]
            order, stuck = order_groups([step.bsym for step in steps], fit, self.conditions.aliasing)
            if not sharing and not stuck:
                return _chain_order(order, steps)
            for chain in (*sharing, *stuck):
                excluded |= self.conditions.representatives(
                    [name for index in chain for name in steps[index].bsym.mutates]
                )

    def _steps(self, parts: dict[int, list[BoundSymbol]]) -> Iterator[_Step]:
        for index, bsym in enumerate(self.bsyms):
            yield from (_Step(part, index, index in parts) for part in parts.get(index, [bsym]))

    def _sharing(self, chains: Sequence[tuple[int, ...]], steps: Sequence[_Step]) -> set[tuple[int, ...]]:
        """Return the chains that share written storage with bound symbols outside by more than one name."""
        here = Counter(proxy.name for bsym in self.bsyms for proxy in bsym.inputs)
        readers: dict[str, set[int]] = {}
        for index, step in enumerate(steps):
            for proxy in step.bsym.inputs:
                readers.setdefault(proxy.name, set()).add(index)
        sharing = set()
        for chain in chains:
            bsyms = [steps[index].bsym for index in chain]
            defined = [proxy.name for bsym in bsyms for proxy in bsym.defines]
            read = [
                name
                for name in defined
                if self.conditions.reads[name] > here[name] or readers.get(name, set()) - set(chain)
            ]
            if not shares_written_storage_by_one_name(bsyms, read, self.conditions.aliasing, self.conditions.written):
                sharing.add(chain)
        return sharing


def _chain_order(order: Sequence[Sequence[int]], steps: Sequence[_Step]) -> ChainOrder:
    bsyms: list[BoundSymbol] = []
    chains: list[range] = []
    for group in order:
        if len(group) > 1:
            chains.append(range(len(bsyms), len(bsyms) + len(group)))
        bsyms += [steps[index].bsym for index in group]
    return ChainOrder(tuple(bsyms), tuple(chains))


class _Joining:
    """Steps joined by the memory of one shape that some of them make or write to."""

    def __init__(self, steps: Sequence[_Step], conditions: ChainConditions, excluded: Collection[str]) -> None:
        self.steps = steps
        self.conditions = conditions
        self.excluded = excluded
        self.shapes = self._shapes()
        self.joined = DisjointSets[int]()

    def chains(self) -> list[tuple[int, ...]]:
        """Return the chains, as ordered indices: groups that write and have more than one operation."""
        owned = {
            representative for index in self.shapes for representative in self._owned_names(self.steps[index].bsym)
        }
        first: dict[str, int] = {}
        for index, shape in self.shapes.items():
            bsym = self.steps[index].bsym
            of_shape = (proxy for proxy in (*bsym.inputs, *bsym.outputs) if isinstance(proxy, TensorProxy))
            representatives = {
                self.conditions.aliasing.representative(proxy.name)
                for proxy in of_shape
                if comparison_keys(proxy.shape) == shape
            }
            for representative in representatives & owned:
                self.joined.unite(index, first.setdefault(representative, index))
        groups: dict[int, list[int]] = {}
        for index in self.shapes:
            groups.setdefault(self.joined.representative(index), []).append(index)
        return [tuple(group) for group in groups.values() if self._is_worthwhile(group)]

    def _shapes(self) -> dict[int, tuple[Any, ...]]:
        """Return the indices of the steps that may be joined, from the first step that writes, with their shapes."""
        shapes: dict[int, tuple[int, ...]] = {}
        for index, step in enumerate(self.steps):
            shape = self._shape(step.bsym) if shapes or step.bsym.mutates else None
            if shape is not None:
                shapes[index] = shape
        return shapes

    def _shape(self, bsym: BoundSymbol) -> tuple[Any, ...] | None:
        results = map(result_of, bsym.operations)
        shapes = {None if result is None else comparison_keys(result.shape) for result in results}
        (shape,) = shapes if len(shapes) == 1 else (None,)
        fits = shape is not None and not self.conditions.representatives(bsym.mutates) & set(self.excluded)
        return shape if fits and self.conditions.takes(bsym) else None

    def _owned_names(self, bsym: BoundSymbol) -> set[str]:
        return self.conditions.representatives([*bsym.mutates, *(proxy.name for proxy in bsym.tensors)])

    def _is_worthwhile(self, group: Sequence[int]) -> bool:
        bsyms = [self.steps[index].bsym for index in group]
        return len(bsyms) > 1 and any(bsym.mutates for bsym in bsyms)
