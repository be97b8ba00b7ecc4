"""Fusion: consecutive bound symbols become regions, equal regions are compiled once, and each runs as one call."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from thunder_core.backend.claiming.executor import Executor
from thunder_core.backend.fusion.conditions import unmet
from thunder_core.backend.fusion.partition import FusionPlan, partition_into_regions
from thunder_core.backend.fusion.region import Region, RegionOccurrence
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import RefusedOperations, Trace

REGION = "region"
ROOT = "module"  # the path of the model itself


class FusionExecutor(Executor):
    """An executor that takes whole regions: it says which bound symbols it can fuse, and compiles regions of them.

    Where it `updates`, its regions may write to tensors that they are given, as PyTorch does: a tensor's version goes
    up (`Region.writes`). They may then also be given numbers, behind their tensors.
    """

    fuses_regions: ClassVar[bool] = True
    updates: bool = False

    @abstractmethod
    def fuses(self, bsym: BoundSymbol) -> bool:
        """Whether a bound symbol may be part of a region, which has no effects but updates."""

    @abstractmethod
    def compile(self, regions: Sequence[Region]) -> Sequence[Fused | Refusal]:
        """The compiled function of each region, or why there is none; all regions are different."""

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:  # noqa: ARG002
        """Return None: an executor of regions claims no single bound symbol."""
        return None

    def takes(self, bsym: BoundSymbol) -> bool:
        """Whether a bound symbol could be part of a region."""
        return bool(bsym.operations) and not bsym.keeps_place and self.fuses(bsym)

    def claim_all(self, trace: Trace) -> Trace:
        """The trace with each region that the executor compiles as one bound symbol."""
        return fuse(trace, self)


@dataclass(frozen=True)
class Refusal:
    """The reason why a region is not compiled; its bound symbols are left to the executors that come after.

    A `lasting` reason lies in the region, not in the state of the machine: another try would end alike. With one that
    is `by_sizes`, the region is compiled for the sizes of each call instead, where nobody asked for symbols.
    """

    reason: str
    lasting: bool = False
    by_sizes: bool = False


@dataclass(frozen=True)
class Fused:
    """A compiled region: `function(name)` gives a function of that name of the region's inputs, numbers and symbols.

    It returns the one output, or a tuple of them, which may be empty. One that `empties` takes its inputs in one list
    and empties it, so that each goes as soon as it was read last, where nobody else has it. It is right where the
    `conditions` hold, which are Python on the symbols, `s0`, `s1`, ...: where it is used, they constrain the program.
    """

    function: Callable[[str], Callable[..., Any]]
    empties: bool = False
    conditions: tuple[str, ...] = ()


def fuse(trace: Trace, executor: FusionExecutor) -> Trace:
    """The trace with each region that the executor compiles as one bound symbol; claimed ones stay as they are.

    Bound symbols that were moved together for a region that is then refused stay where they were.
    """
    compiled: dict[str, Fused | Refusal] = {}
    excluded: set[str] = set()
    refused = list(trace.refused)
    while True:
        plan = partition_into_regions(trace, executor.fuses, updates=executor.updates, excluded=excluded)
        regions = {one.region.digest: one.region for _, one in plan.occurrences if one.region.digest not in compiled}
        compiled |= zip(regions, executor.compile(list(regions.values())), strict=True) if regions else ()
        lost = [(places, one) for places, one in plan.chain_regions if isinstance(compiled[one.region.digest], Refusal)]
        if not lost:
            break
        refused += _refused(lost, compiled, executor.name)
        excluded.update(name for _, one in lost for bsym in one.bsyms for name in bsym.mutates)
    plan, others = _admitted(plan, compiled, executor.name)
    refused += [*_refused(plan.occurrences, compiled, executor.name), *others]
    kept = _replaced(plan, compiled, executor.name)
    return trace.having(kept, made_by=f"fuse by {executor.name}", refused=tuple(refused))


def _admitted(
    plan: FusionPlan, compiled: Mapping[str, Fused | Refusal], executor: str
) -> tuple[FusionPlan, list[RefusedOperations]]:
    """The plan without the occurrences whose sizes are not those that their compiled region is for, and these."""
    kept, refused = [], []
    for places, one in plan.occurrences:
        result = compiled[one.region.digest]
        failing = unmet(result.conditions, one.region.symbols) if isinstance(result, Fused) else ""
        if failing:
            refused.append(RefusedOperations(executor, f"it is compiled for {failing}", len(places), lasting=False))
        else:
            kept.append((places, one))
    return replace(plan, occurrences=tuple(kept)), refused


def _replaced(plan: FusionPlan, compiled: Mapping[str, Fused | Refusal], executor: str) -> Iterator[BoundSymbol]:
    """The bound symbols with those of each compiled region as one."""
    symbols = _symbols({one.region.digest: compiled[one.region.digest] for _, one in plan.occurrences})
    taken: dict[int, list[BoundSymbol]] = {}
    for places, one in plan.occurrences:
        symbol = symbols.get(one.region.digest)
        if symbol is not None:
            taken |= {place: [] for place in places}
            taken[places.start] = [region_bound_symbol(one, symbol, executor)]
    for place, bsym in enumerate(plan.bsyms):
        yield from taken.get(place, [bsym])


def _refused(
    occurrences: Iterable[tuple[range, RegionOccurrence]], compiled: Mapping[str, Fused | Refusal], executor: str
) -> Iterator[RefusedOperations]:
    """The occurrences that the executor was given and did not compile."""
    for places, one in occurrences:
        result = compiled[one.region.digest]
        if isinstance(result, Refusal):
            yield RefusedOperations(executor, result.reason, len(places), result.lasting, result.by_sizes)


def _symbols(compiled: Mapping[str, Fused | Refusal]) -> dict[str, Symbol]:
    """The symbols of compiled regions, numbered in the order in which they are met."""
    fused = {digest: result for digest, result in compiled.items() if isinstance(result, Fused)}
    return {digest: _symbol(result, f"{REGION}_{number}") for number, (digest, result) in enumerate(fused.items())}


def _symbol(fused: Fused, name: str) -> Symbol:
    return Symbol(name, fused.function(name), fused.empties)


def region_bound_symbol(one: RegionOccurrence, symbol: Symbol, executor: str) -> BoundSymbol:
    """The bound symbol that calls a compiled region in the place of its bound symbols."""
    first = one.bsyms[0]
    modules = {bsym.module for bsym in one.bsyms}
    return BoundSymbol(
        symbol=symbol,
        args=([*one.arguments],) if symbol.empties else one.arguments,
        kwargs={},
        output=one.outputs[0] if len(one.outputs) == 1 else one.outputs,
        subsymbols=one.bsyms,
        source=first.source,
        module=_common_module(modules) or ROOT,
        mutates=one.written,
        executor=executor,
    )


def _common_module(modules: Iterable[str]) -> str:
    """The innermost module that all of them are in; empty for the model itself."""
    return ".".join(os.path.commonprefix([module.split(".") for module in modules]))  # noqa: RUF071 - of lists, it compares items
