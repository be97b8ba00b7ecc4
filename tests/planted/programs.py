"""Programs with one of their traces replaced."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

from thunder_core.backend.claiming.claim import claim
from thunder_core.backend.claiming.free import free_after_last_use, take_single_list
from thunder_core.backend.runtime.generate import executable_trace
from thunder_core.backend.runtime.program import Program, Stage
from thunder_core.passes.autodiff.program_derivative import ProgramDerivative
from thunder_core.passes.transforms.cse import ShareCommonExpressions
from thunder_core.passes.transforms.dce import DropDeadCode
from thunder_core.tracing.ir.trace import Trace

Change = Callable[[Trace], Trace]


def with_claimed_trace(program: Program, name: str, change: Change) -> Program:
    """The program with another claimed computation or backward, which runs."""
    if name == "backward":
        return with_claimed_backward(program, change)
    stages = list(program.stages)
    places = [index for index, stage in enumerate(stages) if stage.trace.name == name]
    claimed = change(stages[places[-2]].trace)
    stages[places[-2]] = Stage(claimed, 0.0)
    stages[places[-1]] = Stage(free_after_last_use(claimed), 0.0)
    return replace(program, stages=tuple(stages))


def with_claimed_backward(program: Program, change: Change) -> Program:
    """The program with another claimed backward, for the results of the latest compiled backward."""
    derivative = program.derivative
    assert isinstance(derivative, ProgramDerivative)
    stages = list(derivative._backwards)
    claimed = change(stages[-2].trace)
    freed = free_after_last_use(take_single_list(claimed))
    stages[-2:] = [replace(stages[-2], trace=claimed), replace(stages[-1], trace=freed)]
    own = copy.copy(derivative)
    own._backwards = stages
    own._compiled = {stages[-1].has_cotangent: executable_trace(freed)}
    return replace(program, derivative=own)


def with_trace(program: Program, name: str, change: Change) -> Program:
    """The program with another prologue or epilogue."""
    places = [index for index, stage in enumerate(program.stages) if stage.trace.name == name]
    stages = list(program.stages)
    stages[places[-1]] = Stage(change(stages[places[-1]].trace), 0.0)
    return replace(program, stages=tuple(stages))


def with_transformed_trace(program: Program, transformed: Trace) -> Program:
    """The program of an inference with another computation after the traced one; later stages derive from it."""
    traces = [program.traces("computation")[0], transformed]
    for transform in (ShareCommonExpressions(), DropDeadCode(), lambda trace: claim(trace, ()), free_after_last_use):
        traces.append(transform(traces[-1]))
    others = [stage for stage in program.stages if stage.trace.name != "computation"]
    return replace(program, stages=(*others, *(Stage(trace, 0.0) for trace in traces)))


def with_backward(program: Program, derived: Trace) -> Program:
    """The program with another derived backward, from which all compiled backwards derive."""
    derivative = copy.copy(program.derivative)
    assert isinstance(derivative, ProgramDerivative)
    derivative._backwards, derivative._compiled = [], {}
    derivative.differentiated = replace(derivative.differentiated, full_backward=derived)
    return replace(program, derivative=derivative)
