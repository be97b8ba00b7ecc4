"""Chains: element-wise operations on written tensors of one shape, moved next to each other.

The program of an optimizer either applies one operation to all parameters and then the next operation, or updates one
parameter after another with computations on numbers in between. This module places the bound symbols of each parameter
next to each other as a chain: a region that reads and writes the parameter's memory once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from thunder_core.backend.fusion.foreach import split_foreach
from thunder_core.backend.fusion.schedule import schedule_groups
from thunder_core.backend.fusion.updates import result_of, shares_written_storage_by_one_name
from thunder_core.tracing.analysis.aliasing import AliasSets
from thunder_core.tracing.analysis.cuts import is_extern_call
from thunder_core.tracing.analysis.disjoint_sets import DisjointSets
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import comparison_keys
from thunder_core.tracing.ir.symbol import BoundSymbol


@dataclass(frozen=True)
class ChainSchedule:
    """Bound symbols in a new order in which the members of each chain are contiguous, and the range of each chain."""

    bsyms: tuple[BoundSymbol, ...]
    chains: tuple[range, ...] = ()


@dataclass(frozen=True)
class ChainConditions:
    """The conditions under which a bound symbol joins a chain.

    `can_join` must accept the bound symbol, and the bound symbol must not write to the memory of `excluded_names`.
    `can_split` accepts the calls on lists of tensors (`_foreach_add_`) that may become one operation for each tensor.
    `aliasing` groups the names that share memory, and `written_memory` has the representative names of the memory that
    any bound symbol writes to. `read_counts` maps each name to the number of its reads; the return of a name counts as
    a read.
    """

    can_join: Callable[[BoundSymbol], bool]
    can_split: Callable[[BoundSymbol], bool]
    excluded_names: Collection[str]
    aliasing: AliasSets
    written_memory: Collection[str]
    read_counts: Counter[str]

    def representatives(self, names: Collection[str]) -> set[str]:
        """Return the representative names of the memory that these names have."""
        return {self.aliasing.representative(name) for name in names}


def form_chains(bsyms: Sequence[BoundSymbol], conditions: ChainConditions) -> ChainSchedule:
    """Return the bound symbols in an order in which the members of each chain are contiguous.

    No bound symbol moves across a change of state, a collective, a claimed bound symbol or a library call. The large
    result of a matrix product is therefore freed as early as before.
    """
    result: list[BoundSymbol] = []
    chains: list[range] = []
    for window in _windows(bsyms):
        schedule = _Window(window, conditions).schedule_chains()
        chains += [range(chain.start + len(result), chain.stop + len(result)) for chain in schedule.chains]
        result += schedule.bsyms
    return ChainSchedule(tuple(result), tuple(chains))


def _windows(bsyms: Sequence[BoundSymbol]) -> Iterator[list[BoundSymbol]]:
    """Yield the runs of bound symbols that may be reordered; a bound symbol that no other may cross ends a run."""
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

    def schedule_chains(self) -> ChainSchedule:
        if not any(bsym.mutates for bsym in self.bsyms):
            return ChainSchedule(tuple(self.bsyms))
        splittable = (index for index, bsym in enumerate(self.bsyms) if self.conditions.can_split(bsym))
        parts = {index: split for index in splittable if (split := split_foreach(self.bsyms[index]))}
        excluded = self.conditions.representatives(self.conditions.excluded_names)
        while True:
            steps = [*self._steps(parts)]
            chains = _ChainBuilder(steps, self.conditions, excluded).chains()
            chained = {index for chain in chains for index in chain}
            partly_chained = {step.index for number, step in enumerate(steps) if step.is_part and number not in chained}
            if partly_chained:
                parts = {index: split for index, split in parts.items() if index not in partly_chained}
                continue
            sharing = self._chains_sharing_storage(chains, steps)
            candidates = [chain for chain in chains if chain not in sharing]
            schedule, stuck = schedule_groups([step.bsym for step in steps], candidates, self.conditions.aliasing)
            if not sharing and not stuck:
                return _flatten_schedule(schedule, steps)
            for chain in (*sharing, *stuck):
                excluded |= self.conditions.representatives(
                    [name for index in chain for name in steps[index].bsym.mutates]
                )

    def _steps(self, parts: dict[int, list[BoundSymbol]]) -> Iterator[_Step]:
        for index, bsym in enumerate(self.bsyms):
            yield from (_Step(part, index, index in parts) for part in parts.get(index, [bsym]))

    def _chains_sharing_storage(
        self, chains: Sequence[tuple[int, ...]], steps: Sequence[_Step]
    ) -> set[tuple[int, ...]]:
        """Return the chains that cannot be regions: by several names, they share written storage with other steps."""
        reads_in_window = Counter(proxy.name for bsym in self.bsyms for proxy in bsym.inputs)
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
                if self.conditions.read_counts[name] > reads_in_window[name] or readers.get(name, set()) - set(chain)
            ]
            if not shares_written_storage_by_one_name(
                bsyms, read, self.conditions.aliasing, self.conditions.written_memory
            ):
                sharing.add(chain)
        return sharing


def _flatten_schedule(schedule: Sequence[Sequence[int]], steps: Sequence[_Step]) -> ChainSchedule:
    bsyms: list[BoundSymbol] = []
    chains: list[range] = []
    for group in schedule:
        if len(group) > 1:
            chains.append(range(len(bsyms), len(bsyms) + len(group)))
        bsyms += [steps[index].bsym for index in group]
    return ChainSchedule(tuple(bsyms), tuple(chains))


class _ChainBuilder:
    """Builds chains: groups of steps on tensors of one shape that make or write to the same memory."""

    def __init__(self, steps: Sequence[_Step], conditions: ChainConditions, excluded: Collection[str]) -> None:
        self.steps = steps
        self.conditions = conditions
        self.excluded = excluded
        self.shapes = self._shapes()
        self.groups = DisjointSets[int]()

    def chains(self) -> list[tuple[int, ...]]:
        """Return each chain as the ordered indices of its steps: a group of at least two steps, one of which writes."""
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
                self.groups.unite(index, first.setdefault(representative, index))
        chains: dict[int, list[int]] = {}
        for index in self.shapes:
            chains.setdefault(self.groups.representative(index), []).append(index)
        return [tuple(group) for group in chains.values() if self._is_worthwhile(group)]

    def _shapes(self) -> dict[int, tuple[Any, ...]]:
        """Map the index of each step that may join a chain to the step's shape, from the first step that writes."""
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
        return shape if fits and self.conditions.can_join(bsym) else None

    def _owned_names(self, bsym: BoundSymbol) -> set[str]:
        return self.conditions.representatives([*bsym.mutates, *(proxy.name for proxy in bsym.tensors)])

    def _is_worthwhile(self, group: Sequence[int]) -> bool:
        bsyms = [self.steps[index].bsym for index in group]
        return len(bsyms) > 1 and any(bsym.mutates for bsym in bsyms)
