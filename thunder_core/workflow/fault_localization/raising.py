"""Lines that raise, where the stage before, or eager PyTorch, does not."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.claiming.comparison import Difference
from thunder_core.backend.claiming.copies import Values
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.line_faults import stage_line_fault
from thunder_core.workflow.fault_localization.own_inputs import own_inputs
from thunder_core.workflow.fault_localization.recording import record, settings_kept
from thunder_core.workflow.fault_localization.stages import Evaluated, first_difference
from thunder_core.workflow.validation.inside import Fault

RAISES = "it raises {kind}: {error}"


def first_raising(stages: Sequence[Trace], inputs: Values, states: RandomStates) -> Fault | None:
    """The fault of the first stage behind the first one that raises: at the line that does, or a wrong one."""
    for before, stage in itertools.pairwise(stages):
        raised = raising_place(stage, inputs, states)
        if raised is not None:
            place, error = raised
            return difference_until(before, stage, place, inputs, states) or raising_fault(stage, place, error)
    return None


def raising_place(trace: Trace, inputs: Values, states: RandomStates) -> tuple[int, Exception] | None:
    """The place of the first line of a trace that raises, and what it raises; None where none does."""
    values = {**own_inputs(inputs, trace), **trace.constants}
    with torch.no_grad(), settings_kept(trace.bound_symbols):
        states.restore()
        for place, bsym in enumerate(trace.bound_symbols):
            try:
                evaluate((bsym,), values)
            except Exception as error:
                return place, error
    return None


def difference_until(before: Trace, stage: Trace, place: int, inputs: Values, states: RandomStates) -> Fault | None:
    """The first line of a stage before a place that computes another value than the stage before."""
    until = stage.having(stage.bound_symbols[:place], made_by=stage.made_by, output=())
    first, second = (Evaluated(trace, record(trace, inputs, states)) for trace in (before, until))
    return first_difference(first, second)


def raising_fault(stage: Trace, place: int, error: Exception) -> Fault:
    """The fault of a line that raises."""
    bsym = stage.bound_symbols[place]
    told = Difference(RAISES.format(kind=type(error).__name__, error=error))
    name = next((proxy.name for proxy in bsym.tensors), "")
    return stage_line_fault(stage, bsym, name, told)
