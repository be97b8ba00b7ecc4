"""Lines that raise an error although the previous stage, or eager PyTorch, does not."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.claiming.comparison import Difference
from thunder_core.backend.claiming.copies import Values
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.input_copies import copy_inputs
from thunder_core.workflow.fault_localization.line_faults import stage_line_fault
from thunder_core.workflow.fault_localization.recording import preserve_settings, record
from thunder_core.workflow.fault_localization.stages import EvaluatedStage, first_difference
from thunder_core.workflow.validation.internal_check import Fault

RAISES = "it raises {kind}: {error}"


def first_raising(stages: Sequence[Trace], inputs: Values, states: RandomStates) -> Fault | None:
    """Return the fault of the first later stage that raises an error: at the raising line, or at an earlier line."""
    for before, stage in itertools.pairwise(stages):
        raised = raising_line(stage, inputs, states)
        if raised is not None:
            index, error = raised
            return difference_until(before, stage, index, inputs, states) or raising_fault(stage, index, error)
    return None


def raising_line(trace: Trace, inputs: Values, states: RandomStates) -> tuple[int, Exception] | None:
    """Return the index of the first line of a trace that raises an error, and the error; None if no line does."""
    values = {**copy_inputs(inputs, trace), **trace.constants}
    with torch.no_grad(), preserve_settings(trace.bound_symbols):
        states.restore()
        for index, bsym in enumerate(trace.bound_symbols):
            try:
                evaluate((bsym,), values)
            except Exception as error:
                return index, error
    return None


def difference_until(before: Trace, stage: Trace, index: int, inputs: Values, states: RandomStates) -> Fault | None:
    """Return the fault of a stage's first line before an index whose value differs from the previous stage, or None."""
    until = stage.having(stage.bound_symbols[:index], made_by=stage.made_by, output=())
    first, second = (EvaluatedStage(trace, record(trace, inputs, states)) for trace in (before, until))
    return first_difference(first, second)


def raising_fault(stage: Trace, index: int, error: Exception) -> Fault:
    """Return the fault of a line that raises an error."""
    bsym = stage.bound_symbols[index]
    difference = Difference(RAISES.format(kind=type(error).__name__, error=error))
    name = next((proxy.name for proxy in bsym.tensors), "")
    return stage_line_fault(stage, bsym, name, difference)
