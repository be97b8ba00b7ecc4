"""Partition of a trace into regions: the bound symbols that form each region, and the results that it returns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from thunder_core.backend.fusion.chains import ChainConditions, ChainSchedule, form_chains
from thunder_core.backend.fusion.region import RegionOccurrence, region_occurrence
from thunder_core.backend.fusion.returned_views import move_views, returned_views
from thunder_core.backend.fusion.updates import is_update, shares_written_storage_by_one_name
from thunder_core.backend.fusion.written_memory import devices_of
from thunder_core.tracing.analysis.aliasing import alias_sets, computes_nothing
from thunder_core.tracing.analysis.cuts import divide, is_extern_call
from thunder_core.tracing.analysis.data_errors import READING_VALUES, is_check, may_raise
from thunder_core.tracing.analysis.grad_mode import may_be_recorded, tracked_by_autograd
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace

Fuses = Callable[[BoundSymbol], bool]
RegionsInPlace = Iterable[tuple[range, RegionOccurrence]]


@dataclass(frozen=True)
class FusionPlan:
    """A trace's bound symbols in execution order, and the regions among them.

    `occurrences` are the regions, each with its range of positions, and `chains` are the ranges whose bound symbols
    were moved together.
    """

    bsyms: tuple[BoundSymbol, ...]
    occurrences: tuple[tuple[range, RegionOccurrence], ...]
    chains: Collection[range]

    @property
    def chain_regions(self) -> RegionsInPlace:
        """The regions that are chains: their bound symbols were moved together."""
        return [(positions, region) for positions, region in self.occurrences if positions in self.chains]


def partition_into_regions(trace: Trace, fuses: Fuses, *, updates: bool, excluded: Collection[str] = ()) -> FusionPlan:
    """Return a plan that divides the bound symbols that an executor `fuses` into regions that are worth a kernel.

    With `updates`, regions may write to their inputs; bound symbols that write to a name in `excluded` are not moved.
    Regions with equal bodies are compiled once, so they return the same outputs: every value that the trace reads after
    any of them.
    """
    views = returned_views(trace)
    if not any(bsym.mutates for bsym in trace.bound_symbols):
        trace = move_views(trace, views)
    rules = _Partitioning(trace, fuses, updates, views)
    arranged = rules.schedule_chains(excluded)
    last_read = _last_reads(arranged.bsyms, trace.outputs)
    candidates = [*_candidate_ranges(arranged, rules, last_read)]
    ranges = [positions for positions in candidates if _is_worthwhile(arranged.bsyms[positions.start : positions.stop])]
    regions = [(positions, region_occurrence(arranged.bsyms[positions.start : positions.stop])) for positions in ranges]
    returned: dict[str, set[str]] = {}
    for positions, region in regions:
        read = {name for name, proxy in region.defined.items() if last_read[proxy.name] >= positions.stop}
        returned.setdefault(region.region.body, set()).update(read)
    occurrences = tuple((positions, region.returning(returned[region.region.body])) for positions, region in regions)
    return FusionPlan(arranged.bsyms, occurrences, frozenset(arranged.chains))


class _Partitioning:
    """The rules that decide which bound symbols may join a region.

    A bound symbol may join if no executor has claimed it, autograd does not record it, it has no effects, and it is not
    among the returned `views`; with `updates`, it may also write to its inputs.
    """

    def __init__(self, trace: Trace, fuses: Fuses, updates: bool, views: Collection[BoundSymbol]) -> None:
        self.trace = trace
        self.fuses = fuses
        self.updates = updates
        self.views = views
        self.read = {proxy.name for bsym in trace.bound_symbols for proxy in bsym.inputs}
        self.read |= {proxy.name for proxy in trace.outputs}
        self.writes = any(bsym.mutates for bsym in trace.bound_symbols)
        defined = {proxy.name for bsym in trace.bound_symbols for proxy in bsym.defines}
        tracked = tracked_by_autograd(trace)
        self.recorded_results = tracked & defined  # autograd must see the operations that make these
        self.aliasing = alias_sets(trace.bound_symbols, trace.aliases) if self.writes else alias_sets(())
        self.written = {self.aliasing.representative(name) for bsym in trace.bound_symbols for name in bsym.mutates}
        pairs = zip(trace.bound_symbols, may_be_recorded(trace, tracked), strict=True)
        self.recorded_by_autograd = {id(bsym) for bsym, is_recorded in pairs if is_recorded}

    def schedule_chains(self, excluded: Collection[str]) -> ChainSchedule:
        """Return the bound symbols in an order in which each chain is contiguous; unchanged without updates."""
        bsyms = self.trace.bound_symbols
        if not (self.updates and self.writes):
            return ChainSchedule(bsyms)
        reads = Counter(proxy.name for bsym in bsyms for proxy in bsym.inputs)
        reads.update(proxy.name for proxy in self.trace.outputs)
        can_join, can_split = self._can_join_chain, self._can_split_foreach
        return form_chains(bsyms, ChainConditions(can_join, can_split, excluded, self.aliasing, self.written, reads))

    def can_fuse(self, bsym: BoundSymbol) -> bool:
        """Whether a bound symbol may join a region that shares written memory with the outside by at most one name."""
        if bsym.executor or bsym.keeps_position or not bsym.operations or not self._is_unrecorded(bsym):
            return False
        if bsym in self.views:
            return False
        if not bsym.is_resolved or bsym.symbol.target in READING_VALUES:
            return False
        if bsym.mutates:
            return self.updates and is_update(bsym) and self.fuses(bsym)
        if len(bsym.tensors) < len(bsym.defines) or not any(proxy.name in self.read for proxy in bsym.tensors):
            return False  # an unread call is kept for its error, but compilers of regions would drop it
        return all(_is_pure(operation, numbers=self.updates) for operation in bsym.operations) and self.fuses(bsym)

    def can_fuse_anywhere(self, bsym: BoundSymbol) -> bool:
        """Whether a fusible bound symbol may join any region: no bound symbol writes to the memory of its results.

        The memory of its inputs may be written to, since no bound symbol of a region is moved across a write.
        """
        return not bsym.mutates and not any(
            self.aliasing.representative(proxy.name) in self.written for proxy in bsym.outputs
        )

    def _can_join_chain(self, bsym: BoundSymbol) -> bool:
        """Whether a bound symbol may join a chain: it is fusible, and no error of it depends on values."""
        return self.can_fuse(bsym) and not may_raise(bsym)

    def _can_split_foreach(self, bsym: BoundSymbol) -> bool:
        """Whether a foreach operation (`_foreach_add_`) may be split into one operation for each tensor."""
        return self._is_unrecorded(bsym) and not bsym.ordered and not bsym.executor

    def _is_unrecorded(self, bsym: BoundSymbol) -> bool:
        """Whether autograd records neither the results of a bound symbol nor, if it writes to tensors, the call."""
        if any(proxy.name in self.recorded_results for proxy in (*bsym.inputs, *bsym.outputs)):
            return False
        return not bsym.mutates or id(bsym) not in self.recorded_by_autograd


def _candidate_ranges(arranged: ChainSchedule, rules: _Partitioning, last_read: Mapping[str, int]) -> Iterator[range]:
    """Yield the ranges of possible regions: each chain, and between chains the longest fusible runs."""
    borders = sorted((chain.start, chain.stop) for chain in arranged.chains)
    for (_, start), (stop, end) in pairwise([(0, 0), *borders, (len(arranged.bsyms),) * 2]):
        yield from _regions_between_chains(range(start, stop), arranged.bsyms, rules, last_read)
        if end > stop:
            yield range(stop, end)


def _regions_between_chains(
    positions: range, bsyms: Sequence[BoundSymbol], rules: _Partitioning, last_read: Mapping[str, int]
) -> Iterator[range]:
    """Yield the ranges of regions within a range that has no chain: runs of fusible bound symbols.

    A run that shares written memory with other bound symbols is reduced to the bound symbols that may join any region.
    """
    section = bsyms[positions.start : positions.stop]
    fusible_flags = [rules.can_fuse(bsym) for bsym in section]
    fusible_anywhere = [
        can_fuse and rules.can_fuse_anywhere(bsym) for can_fuse, bsym in zip(fusible_flags, section, strict=True)
    ]
    fusible_runs = _runs(divide(section), fusible_flags if rules.updates else fusible_anywhere)
    for run in _split_at_unconnected_updates(_split_at_devices(fusible_runs, section), section):
        group = section[run.start : run.stop]
        defined = (proxy.name for bsym in group for proxy in bsym.defines)
        read = {name for name in defined if last_read[name] >= positions.start + run.stop}
        separable = not rules.updates or (
            shares_written_storage_by_one_name(group, read, rules.aliasing, rules.written)
            and not writes_and_may_raise(group)
        )
        for fusible in [run] if separable else _runs([run], fusible_anywhere):
            yield range(fusible.start + positions.start, fusible.stop + positions.start)


def writes_and_may_raise(bsyms: Sequence[BoundSymbol]) -> bool:
    """Whether bound symbols write to memory and may raise an error that depends on values.

    A region of them could raise the error after the write, and PyTorch before.
    """
    return any(bsym.mutates for bsym in bsyms) and any(map(may_raise, bsyms))


def _split_at_devices(runs: Iterable[range], bsyms: Sequence[BoundSymbol]) -> Iterator[range]:
    """Yield the runs, split where the device changes: a compiled region launches its kernels on one device."""
    for run in runs:
        start, devices = run.start, set[torch.device]()
        for index in run:
            own = devices_of(bsyms[index])
            if devices and own and own != devices:
                yield range(start, index)
                start = index
            devices = own or devices
        yield range(start, run.stop)


def _split_at_unconnected_updates(runs: Iterable[range], bsyms: Sequence[BoundSymbol]) -> Iterator[range]:
    """Yield the runs, split at each write whose inputs the same run does not compute; no run has such a write."""
    for run in runs:
        start, defined = run.start, set[str]()
        for index in run:
            bsym = bsyms[index]
            if bsym.mutates and not any(proxy.name in defined for proxy in bsym.inputs):
                yield from [range(start, index)] if index > start else []
                start, defined = index + 1, set()
            defined.update(proxy.name for proxy in bsym.outputs)
        yield from [range(start, run.stop)] if run.stop > start else []


def _runs(divisions: Iterable[range], fusible: Sequence[bool]) -> Iterator[range]:
    """Yield the maximal ranges of fusible positions within each division."""
    for division in divisions:
        start = division.start
        for index in division:
            if not fusible[index]:
                if index > start:
                    yield range(start, index)
                start = index + 1
        if division.stop > start:
            yield range(start, division.stop)


def _last_reads(bsyms: Sequence[BoundSymbol], returned: Iterable[Proxy]) -> dict[str, int]:
    """Map each name to the position of its last read.

    An unread name is mapped to the position of its definition, and a returned name to the number of bound symbols.
    """
    indices = {proxy.name: index for index, bsym in enumerate(bsyms) for proxy in bsym.defines}
    for index, bsym in enumerate(bsyms):
        indices.update((proxy.name, index) for proxy in bsym.inputs)
    indices.update((proxy.name, len(bsyms)) for proxy in returned)
    return indices


def _is_pure(operation: BoundSymbol, numbers: bool) -> bool:
    """Whether an aten operation has no effects and only uses strided tensors, or also numbers if `numbers` is set."""
    target = operation.symbol.target
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable or is_check(target):
        return False
    proxies = (*operation.inputs, *operation.outputs)
    return all(_is_strided(proxy) or (numbers and _is_number(proxy)) for proxy in proxies)


def _is_number(proxy: Proxy) -> bool:
    """Whether a proxy is a number that regions accept: a number without metadata, or a symbolic integer."""
    return type(proxy) is Proxy or (isinstance(proxy, NumberProxy) and not isinstance(proxy.value, torch.SymFloat))


def _is_strided(proxy: Proxy) -> bool:
    return isinstance(proxy, TensorProxy) and len(proxy.stride) == len(proxy.shape) and proxy.is_resolved


def _is_worthwhile(group: Sequence[BoundSymbol]) -> bool:
    """Whether a compiler generates code for two or more operations of a region: views and library calls need none.

    A view that its schema does not declare (`_unsafe_view`, after a matrix product) needs no code either.
    """
    operations = [operation for bsym in group for operation in bsym.operations]
    return sum(not (is_extern_call(operation) or computes_nothing(operation)) for operation in operations) > 1
