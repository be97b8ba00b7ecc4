"""Claiming: each bound symbol of a computation is given to the first executor, in the user's order, that takes it.

An executor takes the matches of its patterns before it takes single bound symbols. What all have claimed is
wrapped last.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from thunder_core.capture.settings import is_decisive
from thunder_core.claiming.executor import Executor
from thunder_core.ir.proxy import environment_of
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import RefusedOperations, Trace
from thunder_core.patterns.match import apply_patterns
from thunder_core.patterns.replacement import Replacement

EAGER = "torch"
CONSTANT_SIZES = "it takes constant sizes alone, and those of the program are symbolic"


def claim(trace: Trace, executors: Sequence[Executor]) -> Trace:
    """The trace with an executor named on every bound symbol; what nobody claims runs in eager PyTorch as written.

    So do all bound symbols behind one that changes what operations give: executors see only the state that the program
    is compiled in.
    """
    trace, executors = without_constant_sizes(with_eager_tail(trace), executors)
    for executor in executors:
        trace = executor.claim_all(apply_patterns(trace, executor.name, replacements_for(trace, executor)))
    trace = trace.having(
        (bsym if bsym.executor else replace(bsym, executor=EAGER) for bsym in trace.bound_symbols),
        made_by=f"claim by {EAGER}",
    )
    for executor in executors:
        trace = executor.wrap_claimed(trace)
    return trace.having(trace.bound_symbols, made_by=f"claim by {named(executors) or EAGER}")


def with_eager_tail(trace: Trace) -> Trace:
    """The trace with eager PyTorch named on all from the first bound symbol on that changes what operations give."""
    start = next((place for place, bsym in enumerate(trace.bound_symbols) if is_decisive(bsym)), None)
    if start is None:
        return trace
    tail = (replace(bsym, executor=bsym.executor or EAGER) for bsym in trace.bound_symbols[start:])
    return trace.having((*trace.bound_symbols[:start], *tail), made_by=trace.made_by)


def claim_operations(trace: Trace, executors: Sequence[Executor]) -> Trace:
    """The trace with what executors before the first one that fuses take: bound symbols and patterns, no regions."""
    trace = with_eager_tail(trace)
    trace, executors = without_constant_sizes(trace, executors)
    early = [*itertools.takewhile(lambda one: not one.fuses_regions and one.name != EAGER, executors)]
    for executor in early:
        trace = executor.claim_all(apply_patterns(trace, executor.name, replacements_for(trace, executor)))
    return trace.having(trace.bound_symbols, made_by=f"claim by {named(early)}") if early else trace


def replacements_for(trace: Trace, executor: Executor) -> Sequence[Replacement]:
    """The stretches that an executor replaces in a trace; none where sizes are symbolic, on which none is proved."""
    return executor.replacements if environment_of(trace.inputs) is None else ()


def without_constant_sizes(trace: Trace, executors: Sequence[Executor]) -> tuple[Trace, Sequence[Executor]]:
    """The executors that take the sizes of a trace; those of a symbolic one that do not are written down in it."""
    if environment_of(proxy for bsym in trace.bound_symbols for proxy in (*bsym.inputs, *bsym.outputs)) is None:
        return trace, executors
    left = [executor for executor in executors if not executor.symbolic_sizes]
    known = {one.executor for one in trace.refused}
    count = len(trace.bound_symbols)
    refused = [RefusedOperations(one.name, CONSTANT_SIZES, count) for one in left if one.name not in known]
    taking = [executor for executor in executors if executor.symbolic_sizes]
    return trace.having(trace.bound_symbols, made_by=trace.made_by, refused=(*trace.refused, *refused)), taking


def named(executors: Sequence[Executor]) -> str:
    """The names of executors, for people."""
    return ", ".join(executor.name for executor in executors)


def claims_by_executor(trace: Trace) -> dict[str, int]:
    """The number of bound symbols of the program that each executor runs, the busiest first."""
    counts: Counter[str] = Counter()
    for bsym in trace.bound_symbols:
        if bsym.executor:
            counts[bsym.executor] += len(program_lines(bsym))
    return dict(counts.most_common())


def program_lines(bsym: BoundSymbol) -> tuple[BoundSymbol, ...]:
    """The bound symbols of the program in one that a region, a pattern or a wrapper made; else the one itself."""
    parts = [part for part in bsym.subsymbols if part.source is not None]
    return tuple(bsym for part in parts for bsym in program_lines(part)) or (bsym,)
