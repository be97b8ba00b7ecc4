"""The executors of a recipe that are available on this machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from thunder_core.backend.claiming.claim import NEEDS_CONSTANT_SIZES
from thunder_core.backend.claiming.executor import Executor, find_executor
from thunder_core.backend.claiming.withholding import LEFT_OUT
from thunder_core.backend.fusion.fuse import FusionExecutor
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import EnvironmentLacks, UnknownName
from thunder_core.tracing.extension.authorship import require_return_type
from thunder_core.tracing.extension.requirement import Degradation
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace

FUSED = "fused kernels"


@dataclass(frozen=True)
class NamedExecutor:
    """The name of an executor in a recipe, with the executor or the reason why it is omitted."""

    name: str
    executor: Executor | None
    reason: str | None
    fuses: bool = False


def candidates(
    names: Iterable[str | Executor], target: str = "", device: torch.device | None = None
) -> tuple[NamedExecutor, ...]:
    """Return the executors of these names, or the reasons why they cannot be used.

    The executors run on a `device` of this machine, or on a GPU of the architecture `target`.
    """
    return tuple(_candidate(name, target, device) for name in names)


def _candidate(name: str | Executor, target: str, device: torch.device | None) -> NamedExecutor:
    try:
        executor = find_executor(name)
    except EnvironmentLacks as error:
        return NamedExecutor(str(name), None, error.what, fuses=fuses_by_source(str(name)))
    except UnknownName:
        return NamedExecutor(str(name), None, "no executor of this name is installed")
    reason = _unmet_requirement(executor, target, device)
    return NamedExecutor(executor.name, None if reason else executor, reason, isinstance(executor, FusionExecutor))


def fuses_by_source(name: str) -> bool:
    """Whether an executor that cannot be loaded is a `FusionExecutor`, read from the source of its plug-in."""
    return any(plugin == name for plugin, _ in plugins.definitions("executors", FusionExecutor.__name__))


def _unmet_requirement(executor: Executor, target: str, device: torch.device | None) -> str | None:
    if target:
        method, reason = "missing_for", executor.missing_for(target)
    elif device is None:
        method, reason = "missing", executor.missing()
    else:
        method, reason = "missing_on", executor.missing_on(device)
    checked: str | None = require_return_type(executor, method, reason, (str, type(None)))
    return checked


def lost_fusion(named: Sequence[NamedExecutor]) -> Iterator[Degradation]:
    """Yield a degradation if a recipe names executors that fuse, but none of these executors is available."""
    fusing = [candidate for candidate in named if candidate.fuses]
    if fusing and all(candidate.reason for candidate in fusing):
        named_reasons = "; ".join(f"{candidate.name}: {candidate.reason}" for candidate in fusing)
        reason = named_reasons if len(fusing) > 1 else str(fusing[0].reason)
        yield Degradation(FUSED, reason, "`thunder doctor` shows what to install")


def without_ranges(named: Sequence[NamedExecutor]) -> Iterator[Degradation]:
    """Yield a degradation for each executor that does not support symbolic sizes."""
    for candidate in named:
        if candidate.executor is not None and not candidate.executor.symbolic_sizes:
            yield Degradation(
                candidate.name, NEEDS_CONSTANT_SIZES, "leave out --dynamic, or use a recipe without this executor"
            )


def unused_executors(traces: Sequence[Trace]) -> Iterator[Degradation]:
    """Yield a degradation for each executor that could run no bound symbol, because this machine lacks something.

    Other refusals of an executor do not count; the report lists them. Operations that another executor ran faster in a
    measurement do not count, either.
    """
    running = set(executors_of(bsym for trace in traces for bsym in trace.bound_symbols))
    refused = [
        refusal
        for trace in traces
        for refusal in trace.refused
        if refusal.reason != LEFT_OUT and not refusal.by_measurement
    ]
    offered = [refusal for refusal in refused if not refusal.lasting or refusal.executor not in running]
    for executor in dict.fromkeys(refusal.executor for refusal in offered):
        of_executor = [refusal for refusal in offered if refusal.executor == executor]
        reasons = "; ".join(dict.fromkeys(refusal.reason for refusal in of_executor))
        count = sum(refusal.count for refusal in of_executor)
        yield Degradation(
            FUSED,
            f"{executor} gave up {count} operation{'' if count == 1 else 's'}: {reasons}",
            "`thunder doctor` shows what this machine lacks; fix it and try again",
        )


def executors_of(bound_symbols: Iterable[BoundSymbol]) -> Iterator[str]:
    """Yield the executors of bound symbols and of nested bound symbols."""
    for bsym in bound_symbols:
        yield bsym.executor
        yield from executors_of(bsym.subsymbols)
