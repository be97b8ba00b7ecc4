"""Claiming: each bound symbol of a computation is given to the first executor, in the user's order, that takes it.

An executor takes the matches of its patterns before it takes single bound symbols. Last, an executor may wrap runs of
bound symbols that were claimed into one.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from thunder_core.backend.claiming.executor import Executor
from thunder_core.backend.patterns.match import apply_patterns
from thunder_core.tracing.analysis.grad_mode import followed_by_autograd, may_be_recorded
from thunder_core.tracing.capture.torch_facts.settings import is_decisive
from thunder_core.tracing.ir.proxy import environment_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import RefusedOperations, Trace, nested_bound_symbols, numbers_of, with_subtraces

EAGER = "torch"  # the executor that runs bound symbols in eager PyTorch
NEEDS_CONSTANT_SIZES = "it supports only constant sizes, but the sizes of the program are symbolic"


def claim(trace: Trace, executors: Sequence[Executor], program: Trace | None = None) -> Trace:
    """Return the trace with an executor on every bound symbol, checked and wrapped by those executors that do that.

    All that is not claimed yet runs in eager PyTorch from the first bound symbol on that changes a setting which
    results depend on (the default dtype, deterministic algorithms), since executors compile for the settings at compile
    time. The forward of a `program` that was divided has bound symbols of executors that were claimed there.
    """
    prepared, executors = for_symbolic_sizes(with_eager_tail(trace), executors)
    claimed = claim_unchecked(prepared, executors)
    for executor in executors:
        claimed = executor.check_claimed(trace if program is None else program, claimed)
    return wrap_claimed(claimed, executors)


def claim_unchecked(trace: Trace, executors: Sequence[Executor]) -> Trace:
    """Return the trace with an executor on every bound symbol; what no executor claims runs in eager PyTorch."""
    for executor in executors:
        trace = executor.claim_all(apply_patterns(trace, executor.name, executor.replacements))
    trace = trace.having(
        (bsym if bsym.executor else replace(bsym, executor=EAGER) for bsym in trace.bound_symbols),
        made_by=f"claim by {EAGER}",
    )
    return with_claimed_subtraces(trace, executors)


def wrap_claimed(trace: Trace, executors: Sequence[Executor]) -> Trace:
    """Return a claimed trace with what executors do to what all have claimed."""
    for executor in executors:
        trace = executor.wrap_claimed(trace)
    return trace.having(trace.bound_symbols, made_by=f"claim by {joined_names(executors) or EAGER}")


def with_claimed_subtraces(trace: Trace, executors: Sequence[Executor]) -> Trace:
    """Return the trace with sub-traces that are claimed like it, regions included.

    Where autograd records a call, it may record all that the functions do, also what depends on no tensor that requires
    a gradient in the first turn of a loop: no regions are fused there.
    """
    if not any(bsym.functions for bsym in trace.bound_symbols):
        return trace
    single = [executor for executor in executors if not executor.fuses_regions]

    recorded = may_be_recorded(trace, followed_by_autograd(trace))

    def with_claimed_functions(bsym: BoundSymbol, is_recorded: bool) -> BoundSymbol:
        taking = single if is_recorded else executors
        return with_subtraces(bsym, lambda body: claim_body(body, taking))

    claimed = [with_claimed_functions(*pair) for pair in zip(trace.bound_symbols, recorded, strict=True)]
    refused = [one for bsym in claimed for body in bsym.functions for one in body.refused]
    return trace.having(map(with_number_operands, claimed), made_by=trace.made_by, refused=(*trace.refused, *refused))


def with_number_operands(bsym: BoundSymbol) -> BoundSymbol:
    """Return a bound symbol with all symbolic numbers that its functions read, as a region does, among its operands.

    The operands are its last argument, and the last inputs of each of its functions.
    """
    numbers = numbers_of(*bsym.functions)
    if not numbers:
        return bsym
    lifted = with_subtraces(bsym, lambda body: replace(body, inputs=(*body.inputs, *numbers)))
    *args, operands = lifted.args
    return replace(lifted, args=(*args, (*operands, *numbers)))


def claim_body(body: Trace, executors: Sequence[Executor]) -> Trace:
    """Return a sub-trace with an executor on every bound symbol, which nobody checks."""
    prepared, executors = for_symbolic_sizes(with_eager_tail(body), executors)
    return wrap_claimed(claim_unchecked(prepared, executors), executors)


def with_eager_tail(trace: Trace) -> Trace:
    """Return the trace with eager PyTorch on all from the first change of a setting on which results depend."""
    start = next((place for place, bsym in enumerate(trace.bound_symbols) if is_decisive(bsym)), None)
    if start is None:
        return trace
    tail = (replace(bsym, executor=bsym.executor or EAGER) for bsym in trace.bound_symbols[start:])
    return trace.having((*trace.bound_symbols[:start], *tail), made_by=trace.made_by)


def claim_operations(trace: Trace, executors: Sequence[Executor]) -> Trace:
    """Return the trace claimed by the executors before the first that fuses regions or is eager PyTorch alone.

    These take single bound symbols and matches of patterns; the rest stays unclaimed.
    """
    trace = with_eager_tail(trace)
    trace, executors = for_symbolic_sizes(trace, executors)
    before_fusion = [*itertools.takewhile(lambda one: not one.fuses_regions and one.name != EAGER, executors)]
    for executor in before_fusion:
        trace = executor.claim_all(apply_patterns(trace, executor.name, executor.replacements))
    return (
        trace.having(trace.bound_symbols, made_by=f"claim by {joined_names(before_fusion)}") if before_fusion else trace
    )


def for_symbolic_sizes(trace: Trace, executors: Sequence[Executor]) -> tuple[Trace, Sequence[Executor]]:
    """Return the trace and the executors that can run it.

    Of a trace with symbolic sizes these are the ones that take them; the trace's `refused` names the others.
    """
    if environment_of(proxy for bsym in trace.bound_symbols for proxy in (*bsym.inputs, *bsym.outputs)) is None:
        return trace, executors
    static_only = [executor for executor in executors if not executor.symbolic_sizes]
    known = {one.executor for one in trace.refused}
    count = len(trace.bound_symbols)
    refused = [
        RefusedOperations(one.name, NEEDS_CONSTANT_SIZES, count, by_sizes=True)
        for one in static_only
        if one.name not in known
    ]
    taking = [executor for executor in executors if executor.symbolic_sizes]
    return trace.having(trace.bound_symbols, made_by=trace.made_by, refused=(*trace.refused, *refused)), taking


def joined_names(executors: Sequence[Executor]) -> str:
    """The names of executors, separated by commas."""
    return ", ".join(executor.name for executor in executors)


def claims_by_executor(trace: Trace) -> dict[str, int]:
    """The number of bound symbols of the user's program that each executor runs, the largest first.

    Those of functions that higher-order operators are given count, too, once each.
    """
    counts: Counter[str] = Counter()
    for bsym in nested_bound_symbols(trace):
        if bsym.executor:
            counts[bsym.executor] += len(program_bsyms(bsym))
    return dict(counts.most_common())


def program_bsyms(bsym: BoundSymbol) -> tuple[BoundSymbol, ...]:
    """The bound symbols of the user's program of which a region, a match or a wrapper consists; else the one itself."""
    parts = [part for part in bsym.subsymbols if part.source is not None]  # aten operations have no source
    return tuple(bsym for part in parts for bsym in program_bsyms(part)) or (bsym,)
