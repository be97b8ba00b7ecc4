"""Checks that a program with symbolic sizes accepts the call for which it was traced; if not, it is traced again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from thunder_core.backend.runtime.program import Program, Stage
from thunder_core.frontend.acquire.outside.symbolic import Symbolic
from thunder_core.tracing.analysis.copies import distinguishes_copies_from_views
from thunder_core.tracing.capture.symbolic.sizes import SymbolicSizes
from thunder_core.tracing.ir.retrace import DecidesForOtherCalls, LosesKernels, ReadsStrides, Retrace
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.draws import take_back_draws


def require_for_this_call(sizes: SymbolicSizes) -> None:
    """Raise `Retrace` if a decision based on sizes does not hold for the call."""
    if violated := sizes.violated_symbols():
        raise Retrace(DecidesForOtherCalls(violated))


def require_layouts_of_eager(trace: Trace, sizes: SymbolicSizes, symbolic: Symbolic) -> None:
    """Raise `Retrace` if a size of 1 would give the program other layouts than eager PyTorch, and the program notices.

    The next attempt then decides for each size whether it is 1, or leaves this decision to PyTorch.
    """
    if sizes.reads_strides and not symbolic.decides_ones:
        raise Retrace(ReadsStrides())
    if symbolic.sizes and symbolic.oblivious and distinguishes_copies_from_views(trace):
        raise Retrace(DecidesForOtherCalls())


def require_all_kernels(stages: Iterable[Stage]) -> None:
    """Raise `Retrace` if an executor refuses a bound symbol because sizes are symbolic."""
    refusals = (refusal for stage in stages for refusal in stage.trace.refused)
    lost = next((refusal for refusal in refusals if refusal.by_sizes), None)
    if lost is not None:
        raise Retrace(LosesKernels(f"{lost.executor}: {lost.reason}"))


def require_accepted_call(
    program: Program, subject: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """Run the prologue of a program and raise its errors; restore the random state that the prologue changed."""
    try:
        program.prepare(subject, args, kwargs)
    finally:
        take_back_draws(subject)
