"""Stored programs: the values of the lines that an artifact holds, beside those of a program that was just compiled."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import torch

from thunder_core.claiming.check import RandomStates, Values, copied, no_exact_value
from thunder_core.fault_localization.line_faults import line_fault, of_result
from thunder_core.fault_localization.recording import inputs_by_name, record
from thunder_core.fault_localization.rounding import rounding_difference
from thunder_core.fault_localization.trace_examination import without_freed
from thunder_core.runtime.program import Program
from thunder_core.validation.inside import Fault

COMPUTATION = "computation"


def values_of_run(program: Program, inputs: tuple[Any, ...]) -> Values:
    """The values of the names of a program's computation, as the lines that run give them; copies."""
    values: Values = {}

    def at_call(frame: FrameType, event: str, argument: Any) -> Any:
        return at_line if frame.f_code.co_name == COMPUTATION else None

    def at_line(frame: FrameType, event: str, argument: Any) -> Any:
        for name, value in frame.f_locals.items():
            if isinstance(value, torch.Tensor) and name not in values:
                values[name] = value.detach().clone()
        return at_line

    before = sys.gettrace()
    sys.settrace(at_call)
    try:
        program.compute(inputs)
    finally:
        sys.settrace(before)
    return values


def first_wrong_stored_line(stored: Program, compiled: Program, inputs: tuple[Any, ...]) -> Fault | None:
    """The first line of a stored program whose result is not that of the same program compiled anew; None for none.

    `inputs` are what the prologue gives the computation; what is written to is copied before.
    """
    named = copied(inputs_by_name(compiled.last(COMPUTATION), inputs))
    states = RandomStates.now(named)
    claimed = without_freed(compiled.traces(COMPUTATION))[-1]
    expected = record(claimed, named, states).values
    states.restore()
    own = tuple(copied(named).values())
    values = values_of_run(stored, own)
    for bsym in claimed.bound_symbols:
        for proxy in bsym.tensors:
            mine, theirs = values.get(proxy.name), expected.get(proxy.name)
            if mine is None or theirs is None or mine.shape != theirs.shape or mine.dtype != theirs.dtype:
                continue
            difference = rounding_difference(mine, theirs, no_exact_value).difference
            if difference is not None:
                told = of_result(proxy.name, difference)
                return line_fault("stored", bsym.executor, claimed.name, bsym, proxy.name, told)
    return None
