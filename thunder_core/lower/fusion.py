"""Fusion: stretches of a computation become regions, equal regions are compiled once, and each runs as one line."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.ir.proxy import TensorProxy
from thunder_core.ir.symbol import BoundSymbol, Symbol
from thunder_core.ir.trace import Refused, Trace
from thunder_core.lower.aliases import written_families
from thunder_core.lower.cuts import divided, is_called, is_view
from thunder_core.lower.differentiable import differentiable
from thunder_core.lower.executor import Executor
from thunder_core.lower.region import Region, Stretch, operations_of, stretch

REGION = "region"
ROOT = "module"  # the path of the model itself


class FusionExecutor(Executor):
    """An executor that takes whole regions: it says which lines it can fuse, and compiles regions of them."""

    @abstractmethod
    def fuses(self, bsym: BoundSymbol) -> bool:
        """Whether a line without effects may be part of a region."""

    @abstractmethod
    def compile(self, regions: Sequence[Region]) -> Sequence[Fused | Refusal]:
        """For each region what runs it, or why nothing does; all are different."""

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:  # noqa: ARG002
        """Nothing: single lines are not its business."""
        return None


@dataclass(frozen=True)
class Refusal:
    """Why a region is not compiled; its lines are left to the executors that come after.

    A `lasting` reason lies in the region, not in the state of the machine: another try would end alike.
    """

    reason: str
    lasting: bool = False


@dataclass(frozen=True)
class Fused:
    """What runs a region: `function(name)` gives a function of the region's inputs of that name.

    It returns the one output, or a tuple of them. One that `empties` takes its inputs in one list and empties it, so
    that each goes as soon as it was read last, where nobody else has it.
    """

    function: Callable[[str], Callable[..., Any]]
    empties: bool = False


def fuse(trace: Trace, executor: FusionExecutor) -> Trace:
    """The trace with each region that the executor takes as one line; lines that have an executor stay as they are."""
    stretches = _stretches(trace, executor)
    regions = {one.region.digest: one.region for _, one in stretches}
    compiled = dict(zip(regions, executor.compile(list(regions.values())), strict=True))
    symbols = _symbols(compiled)
    taken: dict[int, list[BoundSymbol]] = {}
    for places, one in stretches:
        symbol = symbols.get(one.region.digest)
        if symbol is not None:
            taken |= {place: [] for place in places}
            taken[places.start] = [_line(one, symbol, executor.name)]
    kept = (line for place, whole in enumerate(trace.bound_symbols) for line in taken.get(place, [whole]))
    refused = (*trace.refused, *_refused(stretches, compiled, executor.name))
    return trace.having(kept, made_by=f"fuse by {executor.name}", refused=refused)


def _refused(
    stretches: Iterable[tuple[range, Stretch]], compiled: Mapping[str, Fused | Refusal], executor: str
) -> Iterator[Refused]:
    """What of the trace the executor was offered and did not compile."""
    for places, one in stretches:
        result = compiled[one.region.digest]
        if isinstance(result, Refusal):
            yield Refused(executor, result.reason, len(places))


def _symbols(compiled: Mapping[str, Fused | Refusal]) -> dict[str, Symbol]:
    """What calls each compiled region, numbered in the order in which they are met."""
    done = {digest: one for digest, one in compiled.items() if isinstance(one, Fused)}
    return {digest: _symbol(one, f"{REGION}_{number}") for number, (digest, one) in enumerate(done.items())}


def _symbol(one: Fused, name: str) -> Symbol:
    return Symbol(name, one.function(name), one.empties)


def _line(one: Stretch, symbol: Symbol, executor: str) -> BoundSymbol:
    first = one.lines[0]
    modules = {line.module for line in one.lines}
    return BoundSymbol(
        symbol=symbol,
        args=([*one.inputs],) if symbol.empties else one.inputs,
        kwargs={},
        output=one.outputs[0] if len(one.outputs) == 1 else one.outputs,
        subsymbols=one.lines,
        source=first.source,
        module=_common(modules) or ROOT,
        executor=executor,
    )


def _common(modules: Iterable[str]) -> str:
    """The innermost module that all of them are in."""
    parts = [module.split(".") for module in modules]
    shared = []
    for level in zip(*parts, strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)


def _stretches(trace: Trace, executor: FusionExecutor) -> list[tuple[range, Stretch]]:
    """Every region of the trace that is worth a kernel, and the places of its lines.

    Regions that compute the same return the same: whatever of it is read later behind any of them.
    """
    lines = trace.bound_symbols
    written, followed = written_families(trace), _made_for_autograd(trace)
    takes = [_is_free(line, written, followed) and executor.fuses(line) for line in lines]
    groups = [places for places in _groups(divided(lines), takes) if _is_worthwhile(lines[places.start : places.stop])]
    found = [(places, stretch(lines[places.start : places.stop])) for places in groups]
    last_read = _last_reads(trace)
    returned: dict[str, set[str]] = {}
    for places, one in found:
        read = {name for name, proxy in one.made.items() if last_read[proxy.name] >= places.stop}
        returned.setdefault(one.region.body, set()).update(read)
    return [(places, one.returning(returned[one.region.body])) for places, one in found]


def _groups(divisions: Iterable[range], takes: Sequence[bool]) -> Iterator[range]:
    """The longest runs of lines that are taken, none of them across a cut."""
    for division in divisions:
        start = division.start
        for place in division:
            if not takes[place]:
                if place > start:
                    yield range(start, place)
                start = place + 1
        if division.stop > start:
            yield range(start, division.stop)


def _last_reads(trace: Trace) -> dict[str, int]:
    """Where each name is read last; what is returned is read behind the last line."""
    found = {proxy.name: place for place, line in enumerate(trace.bound_symbols) for proxy in line.defines}
    for place, line in enumerate(trace.bound_symbols):
        found.update((proxy.name, place) for proxy in line.inputs)
    found.update((proxy.name, len(trace.bound_symbols)) for proxy in trace.outputs)
    return found


def _made_for_autograd(trace: Trace) -> frozenset[str]:
    """The tensors made on the way that autograd has to see being made; regions are opaque to it."""
    made = {proxy.name for line in trace.bound_symbols for proxy in line.defines}
    return differentiable(trace) & made


def _is_free(line: BoundSymbol, written: frozenset[str], followed: frozenset[str]) -> bool:
    """Whether a line can move into a region: unclaimed, without effects, away from what others have to see.

    It may read memory that is written to, since no line of a region crosses a line that writes; but it may not make
    such memory, or a view of it.
    """
    if line.executor or line.has_effect or not line.tensors or len(line.tensors) < len(line.defines):
        return False
    if not operations_of(line):
        return False
    if any(proxy.name in written for proxy in line.outputs):
        return False
    if any(proxy.name in followed for proxy in (*line.inputs, *line.outputs)):
        return False
    return all(map(_is_pure, operations_of(line)))


def _is_pure(operation: BoundSymbol) -> bool:
    """Whether an aten operation only computes and writes nothing. (Shapes that depend on data never come this far.)"""
    target = operation.symbol.target
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    tensors = (*operation.inputs, *operation.outputs)
    return all(isinstance(proxy, TensorProxy) and len(proxy.stride) == len(proxy.shape) for proxy in tensors)


def _is_worthwhile(group: Sequence[BoundSymbol]) -> bool:
    """Whether a compiler has something to write: more than one operation that is neither called nor a view."""
    written = [one for line in group for one in operations_of(line) if not (is_called(one) or is_view(one))]
    return len(written) > 1
