"""Claiming: each line of a computation is given to the first executor, in the user's order, that takes it.

An executor takes the stretches that its patterns find before it takes single lines. What all have claimed is wrapped
last.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from thunder_core.capture.settings import is_decisive
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import Trace
from thunder_core.lower.executor import Executor
from thunder_core.lower.fusion import FusionExecutor, fuse
from thunder_core.lower.stretch import claim_stretches
from thunder_core.lower.wrapping import WrappingExecutor, wrap

EAGER = "torch"


def claim(trace: Trace, executors: Sequence[Executor]) -> Trace:
    """The trace with an executor named on every line; what nobody claims runs in eager PyTorch as it is written.

    So do all lines behind one that changes what operations give: executors see only the state that the program is
    compiled in.
    """
    trace = with_eager_tail(trace)
    for executor in executors:
        trace = claim_stretches(trace, executor.name, executor.replacements)
        trace = fuse(trace, executor) if isinstance(executor, FusionExecutor) else _claimed(trace, executor)
    trace = trace.having(
        (bsym if bsym.executor else replace(bsym, executor=EAGER) for bsym in trace.bound_symbols),
        made_by=f"claim by {EAGER}",
    )
    for executor in executors:
        trace = wrap(trace, executor) if isinstance(executor, WrappingExecutor) else trace
    return trace.having(trace.bound_symbols, made_by=f"claim by {named(executors) or EAGER}")


def with_eager_tail(trace: Trace) -> Trace:
    """The trace with eager PyTorch named on the first line that changes what operations give, and all behind it."""
    start = next((place for place, line in enumerate(trace.bound_symbols) if is_decisive(line)), None)
    if start is None:
        return trace
    tail = (replace(line, executor=line.executor or EAGER) for line in trace.bound_symbols[start:])
    return trace.having((*trace.bound_symbols[:start], *tail), made_by=trace.made_by)


def claim_operations(trace: Trace, executors: Sequence[Executor]) -> Trace:
    """The trace with what executors take that stand before the first one that fuses: lines and patterns, no regions."""
    trace = with_eager_tail(trace)
    early = [*itertools.takewhile(lambda one: not isinstance(one, FusionExecutor) and one.name != EAGER, executors)]
    for executor in early:
        trace = _claimed(claim_stretches(trace, executor.name, executor.replacements), executor)
    return trace.having(trace.bound_symbols, made_by=f"claim by {named(early)}") if early else trace


def named(executors: Sequence[Executor]) -> str:
    """The names of executors, for people."""
    return ", ".join(executor.name for executor in executors)


def _claimed(trace: Trace, executor: Executor) -> Trace:
    """The trace with what one executor takes, line by line, of what nobody has yet."""
    lines = (bsym if bsym.executor else executor.claim(bsym) or bsym for bsym in trace.bound_symbols)
    return trace.having(lines, made_by=f"claim by {executor.name}")


def claims_by_executor(trace: Trace) -> dict[str, int]:
    """How many lines of the program each executor runs, the busiest first."""
    counts: Counter[str] = Counter()
    for bsym in trace.bound_symbols:
        if bsym.executor:
            counts[bsym.executor] += len(program_lines(bsym))
    return dict(counts.most_common())


def program_lines(bsym: BoundSymbol) -> tuple[BoundSymbol, ...]:
    """The lines of the program that a line stands for: those that a region, a pattern or a wrapper took, or itself."""
    parts = [part for part in bsym.subsymbols if part.source is not None]
    return tuple(line for part in parts for line in program_lines(part)) or (bsym,)
