"""The statistics of a run: facts about a program's traces as rows of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from thunder_core.backend.claiming.claim import claims_by_executor, program_bsyms
from thunder_core.backend.fusion.machine_code import machine_code_of
from thunder_core.backend.runtime.program import Program, Stage
from thunder_core.compilation.memory.use import MemoryUse
from thunder_core.tracing.ir.trace import Trace, nested_bound_symbols
from thunder_core.workflow.pipeline.session.executors import NamedExecutor
from thunder_core.workflow.pipeline.session.program_time import TimeShares
from thunder_core.workflow.report import (
    ExecutorRefusal,
    ExecutorShare,
    KernelChoice,
    MemoryPoint,
    OperationCount,
    TraceSummary,
)

MAX_LISTED_OPERATIONS = 5  # the number of operations that a report names for each executor
LATER_TRACES = ("tail", "backward")  # traces that are made at their first use
SymbolCounts = Counter[tuple[str, str, str]]


def trace_summaries(program: Program) -> tuple[TraceSummary, ...]:
    """Return a summary of each trace at each stage, in the order of compilation."""
    behind = (stage for name in LATER_TRACES for stage in program.stages_of(name))
    return tuple(_summaries((*program.stages, *behind)))


def _summaries(stages: Sequence[Stage]) -> Iterator[TraceSummary]:
    before: dict[str, SymbolCounts] = {}
    masks: dict[str, tuple[bool, ...]] = {}
    seen: Counter[str] = Counter()
    for stage in stages:
        trace, counts = stage.trace, symbol_counts(stage.trace)
        earlier = before.get(trace.name) if stage.has_cotangent == masks.get(trace.name, stage.has_cotangent) else None
        yield TraceSummary(
            trace=trace.name,
            stage=str(seen[trace.name]),
            made_by=trace.made_by,
            lines=len(trace),
            seconds=stage.seconds,
            changed=0 if earlier is None else max((counts - earlier).total(), (earlier - counts).total()),
        )
        before[trace.name], masks[trace.name] = counts, stage.has_cotangent
        seen[trace.name] += 1


def symbol_counts(trace: Trace) -> SymbolCounts:
    """Count the bound symbols of a trace by the called function, the executor and the names of the results."""
    return Counter(
        (bsym.symbol.name, bsym.executor, " ".join(proxy.name for proxy in bsym.outputs))
        for bsym in trace.bound_symbols
    )


def executor_shares(trace: Trace, times: TimeShares, backwards: Sequence[Trace] = ()) -> tuple[ExecutorShare, ...]:
    """Return how many bound symbols each executor runs, and its share of the time; the busiest executor is first.

    Bound symbols of the tail and of the backwards are counted separately.
    """
    forward, behind = claims_by_executor(trace), Counter[str]()
    for backward in backwards:
        behind.update(claims_by_executor(backward))
    return tuple(
        ExecutorShare(
            executor=name,
            operations=forward.get(name, 0),
            backward=behind[name],
            time_share=times.forward.get(name),
            backward_share=times.backward.get(name),
            frequent=operation_counts(trace, executor=name)[:MAX_LISTED_OPERATIONS],
        )
        for name in dict.fromkeys((*forward, *behind))
    )


def refusals(candidates: Iterable[NamedExecutor], trace: Trace) -> tuple[ExecutorRefusal, ...]:
    """Return the refusals of the recipe's executors: first unavailable executors, then refused operations."""
    absent = (
        ExecutorRefusal(executor=candidate.name, reason=candidate.reason)
        for candidate in candidates
        if candidate.reason
    )
    counts: Counter[tuple[str, str]] = Counter()
    for refusal in trace.refused:
        counts[refusal.executor, refusal.reason] += refusal.count
    offered = (
        ExecutorRefusal(executor=name, reason=reason, operations=count)
        for (name, reason), count in counts.most_common()
    )
    return (*absent, *offered)


def kernel_choices(trace: Trace) -> tuple[KernelChoice, ...]:
    """Return the kernels that executors chose by a measurement, the most frequent first."""
    counts: Counter[tuple[str, str]] = Counter()
    for bsym in nested_bound_symbols(trace):
        code = machine_code_of(bsym.symbol.target)
        if code is not None and code.choice:
            counts[bsym.executor, code.choice] += len(program_bsyms(bsym))
    for chosen in trace.chosen:
        counts[chosen.executor, chosen.choice] += chosen.count
    return tuple(
        KernelChoice(executor=name, choice=choice, operations=count) for (name, choice), count in counts.most_common()
    )


def operation_counts(trace: Trace, *, executor: str = "") -> tuple[OperationCount, ...]:
    """Return the number of calls of each operation by an executor, or by all; the most frequent first."""
    claimed = (bsym for bsym in nested_bound_symbols(trace) if bsym.executor and executor in ("", bsym.executor))
    counts = Counter(inner.symbol.name for bsym in claimed for inner in program_bsyms(bsym))
    return tuple(OperationCount(name=name, count=count) for name, count in counts.most_common())


def memory_points(use: MemoryUse) -> tuple[MemoryPoint, ...]:
    """Return the bytes that the computation itself allocates, after each bound symbol and while it runs."""
    return tuple(
        MemoryPoint(line=line.number, trace=line.trace, bytes=line.held - use.outside, peak=line.peak - use.outside)
        for line in use.lines
    )
