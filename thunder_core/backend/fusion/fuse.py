"""Fusion: consecutive bound symbols become regions, equal regions are compiled once, and each region is one call."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from thunder_core.backend.claiming.executor import Executor
from thunder_core.backend.fusion.conditions import apply_conditions
from thunder_core.backend.fusion.partition import FusionPlan, partition_into_regions
from thunder_core.backend.fusion.region import Region, RegionOccurrence
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import RefusedOperations, Trace

REGION = "region"
ROOT = "module"  # the path of the model itself


class FusionExecutor(Executor):
    """An executor that compiles regions, each of many bound symbols, and declares which bound symbols it can compile.

    If `updates` is set, a region may write to its input tensors as PyTorch does, which increases the version of each
    tensor (`Region.writes`). Such a region may also take numbers, after its tensors.
    """

    fuses_regions: ClassVar[bool] = True
    updates: bool = False

    @abstractmethod
    def fuses(self, bsym: BoundSymbol) -> bool:
        """Whether the executor can compile a bound symbol in a region; a region has no effects except updates."""

    @abstractmethod
    def compile(self, regions: Sequence[Region]) -> Sequence[Fused | Refusal]:
        """Return, for each region, its compiled function or a refusal; no two of the regions are equal."""

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:  # noqa: ARG002
        """Return None: an executor of regions claims no single bound symbol."""
        return None

    def can_claim(self, bsym: BoundSymbol) -> bool:
        """Whether a bound symbol could be part of a region."""
        return bool(bsym.operations) and not bsym.keeps_position and self.fuses(bsym)

    def claim_all(self, trace: Trace) -> Trace:
        """Return the trace in which one bound symbol replaces each region that the executor compiles."""
        return fuse(trace, self)


@dataclass(frozen=True)
class Refusal:
    """The reason why a region is not compiled; the following executors may claim its bound symbols.

    A `lasting` reason depends on the region, not on the state of the machine, so another attempt would fail too. A
    refusal `by_sizes` concerns symbolic sizes only: the program is compiled for the sizes of each call instead, unless
    the user asked for symbolic sizes.
    """

    reason: str
    lasting: bool = False
    by_sizes: bool = False


@dataclass(frozen=True)
class Fused:
    """A compiled region: `function(name)` returns a function of the region's inputs, numbers and symbols.

    The function returns its only output, or else a tuple of its outputs, which may be empty. If `empties` is set, the
    function takes its inputs in one list and empties the list, so that each input can be freed after its last use. The
    `conditions` are Python expressions of the symbols `s0`, `s1`, ...; the function is valid only if they hold. A
    program that calls the function has the conditions as constraints.
    """

    function: Callable[[str], Callable[..., Any]]
    empties: bool = False
    conditions: tuple[str, ...] = ()


def fuse(trace: Trace, executor: FusionExecutor) -> Trace:
    """Return the trace in which one bound symbol replaces each region that the executor compiles.

    Bound symbols that another executor has claimed are unchanged. If the executor refuses a region whose bound symbols
    were moved together, the bound symbols return to their positions.
    """
    compiled: dict[str, Fused | Refusal] = {}
    excluded: set[str] = set()
    refused = list(trace.refused)
    while True:
        plan = partition_into_regions(trace, executor.fuses, updates=executor.updates, excluded=excluded)
        regions = {
            occurrence.region.digest: occurrence.region
            for _, occurrence in plan.occurrences
            if occurrence.region.digest not in compiled
        }
        compiled |= zip(regions, executor.compile(list(regions.values())), strict=True) if regions else ()
        refused_chains = [
            (indices, occurrence)
            for indices, occurrence in plan.chain_regions
            if isinstance(compiled[occurrence.region.digest], Refusal)
        ]
        if not refused_chains:
            break
        refused += _refusals(refused_chains, compiled, executor.name)
        excluded.update(name for _, occurrence in refused_chains for bsym in occurrence.bsyms for name in bsym.mutates)
    plan, unsupported = _without_unsupported(plan, compiled, executor.name)
    refused += [*_refusals(plan.occurrences, compiled, executor.name), *unsupported]
    bsyms = _replace(plan, compiled, executor.name)
    return trace.having(bsyms, made_by=f"fuse by {executor.name}", refused=tuple(refused))


def _without_unsupported(
    plan: FusionPlan, compiled: Mapping[str, Fused | Refusal], executor: str
) -> tuple[FusionPlan, list[RefusedOperations]]:
    """Return the plan without its unsupported occurrences, and a refusal for each unsupported occurrence.

    An occurrence is unsupported if its sizes do not meet the conditions of the compiled region.
    """
    occurrences, refused = [], []
    for indices, occurrence in plan.occurrences:
        result = compiled[occurrence.region.digest]
        failing = apply_conditions(result.conditions, occurrence.region.symbols) if isinstance(result, Fused) else ""
        if failing:
            refused.append(RefusedOperations(executor, f"it is compiled for {failing}", len(indices), lasting=False))
        else:
            occurrences.append((indices, occurrence))
    return replace(plan, occurrences=tuple(occurrences)), refused


def _replace(plan: FusionPlan, compiled: Mapping[str, Fused | Refusal], executor: str) -> Iterator[BoundSymbol]:
    """Yield the bound symbols of a plan; one bound symbol replaces the members of each compiled region."""
    symbols = _symbols(
        {occurrence.region.digest: compiled[occurrence.region.digest] for _, occurrence in plan.occurrences}
    )
    replacements: dict[int, list[BoundSymbol]] = {}
    for indices, occurrence in plan.occurrences:
        symbol = symbols.get(occurrence.region.digest)
        if symbol is not None:
            replacements |= {index: [] for index in indices}
            replacements[indices.start] = [region_bound_symbol(occurrence, symbol, executor)]
    for index, bsym in enumerate(plan.bsyms):
        yield from replacements.get(index, [bsym])


def _refusals(
    occurrences: Iterable[tuple[range, RegionOccurrence]], compiled: Mapping[str, Fused | Refusal], executor: str
) -> Iterator[RefusedOperations]:
    """Yield the refusals of the occurrences that the executor did not compile."""
    for indices, occurrence in occurrences:
        result = compiled[occurrence.region.digest]
        if isinstance(result, Refusal):
            yield RefusedOperations(executor, result.reason, len(indices), result.lasting, result.by_sizes)


def _symbols(compiled: Mapping[str, Fused | Refusal]) -> dict[str, Symbol]:
    """Return the symbols of compiled regions, numbered in order of occurrence."""
    fused = {digest: result for digest, result in compiled.items() if isinstance(result, Fused)}
    return {digest: _symbol(result, f"{REGION}_{number}") for number, (digest, result) in enumerate(fused.items())}


def _symbol(fused: Fused, name: str) -> Symbol:
    return Symbol(name, fused.function(name), fused.empties)


def region_bound_symbol(occurrence: RegionOccurrence, symbol: Symbol, executor: str) -> BoundSymbol:
    """Return the bound symbol that calls a compiled region in place of the region's bound symbols."""
    first = occurrence.bsyms[0]
    modules = {bsym.module for bsym in occurrence.bsyms}
    return BoundSymbol(
        symbol=symbol,
        args=([*occurrence.arguments],) if symbol.empties else occurrence.arguments,
        kwargs={},
        output=occurrence.outputs[0] if len(occurrence.outputs) == 1 else occurrence.outputs,
        subsymbols=occurrence.bsyms,
        source=first.source,
        module=_common_module(modules) or ROOT,
        mutates=occurrence.written,
        executor=executor,
    )


def _common_module(modules: Iterable[str]) -> str:
    """Return the innermost module that contains all modules; empty for the model itself."""
    return ".".join(os.path.commonprefix([module.split(".") for module in modules]))  # noqa: RUF071 - for lists, it compares items
