"""Claiming: each bound symbol of a computation is claimed by the first executor, in the user's order, that can run it.

An executor claims the matches of its patterns before single bound symbols. Finally, an executor may wrap consecutive
claimed bound symbols into one bound symbol.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from thunder_core.backend.claiming.executor import Executor
from thunder_core.backend.patterns.match import apply_patterns
from thunder_core.foundation.progress_marks import mark_progress
from thunder_core.tracing.analysis.grad_mode import may_be_recorded, tracked_by_autograd
from thunder_core.tracing.capture.torch_facts.settings import changes_later_results
from thunder_core.tracing.ir.proxy import environment_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import RefusedOperations, Trace, nested_bound_symbols, numbers_of, with_subtraces

EAGER = "torch"  # the executor that runs bound symbols in eager PyTorch
NEEDS_CONSTANT_SIZES = "it supports only constant sizes, but the sizes of the program are symbolic"


def claim(trace: Trace, executors: Sequence[Executor], program: Trace | None = None) -> Trace:
    """Return the trace with every bound symbol claimed, and with the checks and wrappers that executors add.

    Executors compile for the settings at compile time. From the first change of a setting that affects results (the
    default dtype, deterministic algorithms), unclaimed bound symbols therefore run in eager PyTorch. If `trace` is the
    forward of a program, some of whose bound symbols are already claimed, `program` is the unclaimed program.
    """
    mark_progress("choose kernels")
    prepared, executors = for_symbolic_sizes(with_eager_tail(trace), executors)
    claimed = claim_unchecked(prepared, executors)
    for executor in executors:
        claimed = executor.check_claimed(trace if program is None else program, claimed)
    return wrap_claimed(claimed, executors)


def claim_unchecked(trace: Trace, executors: Sequence[Executor]) -> Trace:
    """Return the trace with every bound symbol claimed; eager PyTorch runs bound symbols that no executor claims."""
    for executor in executors:
        trace = executor.claim_all(apply_patterns(trace, executor.name, executor.replacements))
    trace = trace.having(
        (bsym if bsym.executor else replace(bsym, executor=EAGER) for bsym in trace.bound_symbols),
        made_by=f"claim by {EAGER}",
    )
    return with_claimed_subtraces(trace, executors)


def wrap_claimed(trace: Trace, executors: Sequence[Executor]) -> Trace:
    """Return a claimed trace in which the executors have wrapped the bound symbols that they wrap."""
    for executor in executors:
        trace = executor.wrap_claimed(trace)
    return trace.having(trace.bound_symbols, made_by=f"claim by {joined_names(executors) or EAGER}")


def with_claimed_subtraces(trace: Trace, executors: Sequence[Executor]) -> Trace:
    """Return the trace with the bound symbols of its sub-traces claimed by the same executors.

    If autograd records a call of a higher-order operator, no regions are fused in the sub-traces of the call. Autograd
    may then record any operation of these sub-traces, even an operation that in the first iteration of a loop depends
    on no tensor that requires a gradient.
    """
    if not any(bsym.functions for bsym in trace.bound_symbols):
        return trace
    without_fusion = [executor for executor in executors if not executor.fuses_regions]

    recorded = may_be_recorded(trace, tracked_by_autograd(trace))

    def with_claimed_functions(bsym: BoundSymbol, is_recorded: bool) -> BoundSymbol:
        body_executors = without_fusion if is_recorded else executors
        return with_subtraces(bsym, lambda body: claim_body(body, body_executors))

    claimed = [with_claimed_functions(*pair) for pair in zip(trace.bound_symbols, recorded, strict=True)]
    bodies = [body for bsym in claimed for body in bsym.functions]
    refused = [item for body in bodies for item in body.refused]
    chosen = [item for body in bodies for item in body.chosen]
    return trace.having(
        map(with_number_operands, claimed),
        made_by=trace.made_by,
        refused=(*trace.refused, *refused),
        chosen=(*trace.chosen, *chosen),
    )


def with_number_operands(bsym: BoundSymbol) -> BoundSymbol:
    """Return a call of a higher-order operator that passes its functions all symbolic numbers that they read.

    The operands of such a call are its last argument, and become the last inputs of each of its functions.
    """
    numbers = numbers_of(*bsym.functions)
    if not numbers:
        return bsym
    lifted = with_subtraces(bsym, lambda body: replace(body, inputs=(*body.inputs, *numbers)))
    *args, operands = lifted.args
    return replace(lifted, args=(*args, (*operands, *numbers)))


def claim_body(body: Trace, executors: Sequence[Executor]) -> Trace:
    """Return a sub-trace with an executor on every bound symbol, without checks."""
    prepared, executors = for_symbolic_sizes(with_eager_tail(body), executors)
    return wrap_claimed(claim_unchecked(prepared, executors), executors)


def with_eager_tail(trace: Trace) -> Trace:
    """Return the trace in which eager PyTorch runs all bound symbols from the first change of certain settings on.

    These are the settings that affect the results of later operations, such as the default dtype.
    """
    start = next((index for index, bsym in enumerate(trace.bound_symbols) if changes_later_results(bsym)), None)
    if start is None:
        return trace
    tail = (replace(bsym, executor=bsym.executor or EAGER) for bsym in trace.bound_symbols[start:])
    return trace.having((*trace.bound_symbols[:start], *tail), made_by=trace.made_by)


def claim_before_fusion(trace: Trace, executors: Sequence[Executor]) -> Trace:
    """Return the trace claimed by the executors that come before fusion executors and eager PyTorch.

    These executors claim single bound symbols and matches of patterns. All other bound symbols stay unclaimed.
    """
    trace = with_eager_tail(trace)
    trace, executors = for_symbolic_sizes(trace, executors)
    before_fusion = [
        *itertools.takewhile(lambda executor: not executor.fuses_regions and executor.name != EAGER, executors)
    ]
    for executor in before_fusion:
        trace = executor.claim_all(apply_patterns(trace, executor.name, executor.replacements))
    return (
        trace.having(trace.bound_symbols, made_by=f"claim by {joined_names(before_fusion)}") if before_fusion else trace
    )


def for_symbolic_sizes(trace: Trace, executors: Sequence[Executor]) -> tuple[Trace, Sequence[Executor]]:
    """Return the trace, and the executors that can run it.

    If the trace has symbolic sizes, only the executors that support them are returned, and the `refused` field of the
    returned trace lists the others.
    """
    if environment_of(proxy for bsym in trace.bound_symbols for proxy in (*bsym.inputs, *bsym.outputs)) is None:
        return trace, executors
    static_only = [executor for executor in executors if not executor.symbolic_sizes]
    already_listed = {refusal.executor for refusal in trace.refused}
    count = len(trace.bound_symbols)
    refused = [
        RefusedOperations(executor.name, NEEDS_CONSTANT_SIZES, count, by_sizes=True)
        for executor in static_only
        if executor.name not in already_listed
    ]
    supporting = [executor for executor in executors if executor.symbolic_sizes]
    return trace.having(trace.bound_symbols, made_by=trace.made_by, refused=(*trace.refused, *refused)), supporting


def joined_names(executors: Sequence[Executor]) -> str:
    """Return the names of executors, separated by commas."""
    return ", ".join(executor.name for executor in executors)


def claims_by_executor(trace: Trace) -> dict[str, int]:
    """Return the number of bound symbols of the user's program that each executor runs, the largest number first.

    Each bound symbol in a function of a higher-order operator counts once.
    """
    counts: Counter[str] = Counter()
    for bsym in nested_bound_symbols(trace):
        if bsym.executor:
            counts[bsym.executor] += len(program_bsyms(bsym))
    return dict(counts.most_common())


def program_bsyms(bsym: BoundSymbol) -> tuple[BoundSymbol, ...]:
    """Return the bound symbols of the user's program in a region, match or wrapper; or the bound symbol itself."""
    members = [inner for inner in bsym.subsymbols if inner.source is not None]  # aten operations have no source
    nested = tuple(inner for member in members for inner in program_bsyms(member))
    return nested or (bsym,)
