"""Claiming: each line of a computation is given to the first executor, in the user's order, that takes it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import Trace
from thunder_core.lower.executor import Executor

EAGER = "torch"


def claim(trace: Trace, executors: Sequence[Executor]) -> Trace:
    """The trace with an executor named on every line; what nobody claims runs in eager PyTorch as it is written."""
    names = ", ".join(executor.name for executor in executors) or EAGER
    return trace.having((_claimed(bsym, executors) for bsym in trace.bound_symbols), made_by=f"claim by {names}")


def _claimed(bsym: BoundSymbol, executors: Sequence[Executor]) -> BoundSymbol:
    for executor in executors:
        claimed = executor.claim(bsym)
        if claimed is not None:
            return claimed
    return replace(bsym, executor=EAGER)


def claims_by_executor(trace: Trace) -> dict[str, int]:
    """How many lines each executor runs, the busiest first."""
    return dict(Counter(bsym.executor for bsym in trace.bound_symbols if bsym.executor).most_common())
