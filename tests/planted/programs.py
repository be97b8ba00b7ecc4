"""Programs with other traces in the place of their own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

from thunder_core.autodiff.program_derivative import ProgramDerivative, unpacking
from thunder_core.claiming.free import free_after_last_use
from thunder_core.ir.trace import Trace
from thunder_core.runtime.generate import executable_trace
from thunder_core.runtime.program import Program, Stage

Change = Callable[[Trace], Trace]


def with_claimed(program: Program, name: str, change: Change) -> Program:
    """The program with another claimed computation or backward, which is what runs."""
    if name == "backward":
        return with_claimed_backward(program, change)
    stages = list(program.stages)
    places = [place for place, stage in enumerate(stages) if stage.trace.name == name]
    claimed = change(stages[places[-2]].trace)
    stages[places[-2]] = Stage(claimed, 0.0)
    stages[places[-1]] = Stage(free_after_last_use(claimed), 0.0)
    return replace(program, stages=tuple(stages))


def with_claimed_backward(program: Program, change: Change) -> Program:
    """The program with another claimed backward, for the results that the latest backward was compiled for."""
    derivative = program.derivative
    assert isinstance(derivative, ProgramDerivative)
    stages = list(derivative._backwards)
    claimed = change(stages[-2].trace)
    freed = free_after_last_use(unpacking(claimed))
    stages[-2:] = [replace(stages[-2], trace=claimed), replace(stages[-1], trace=freed)]
    own = copy.copy(derivative)
    own._backwards = stages
    own._compiled = {stages[-1].given: executable_trace(freed)}
    return replace(program, derivative=own)


def with_trace(program: Program, name: str, change: Change) -> Program:
    """The program with another prologue or epilogue."""
    places = [place for place, stage in enumerate(program.stages) if stage.trace.name == name]
    stages = list(program.stages)
    stages[places[-1]] = Stage(change(stages[places[-1]].trace), 0.0)
    return replace(program, stages=tuple(stages))
