"""The examination of a program on one call: what it unpacks, computes, differentiates and returns, and its guards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.runtime.program import Program
from thunder_core.tracing.library.examination import examining
from thunder_core.workflow.fault_localization.backward import examine_backward
from thunder_core.workflow.fault_localization.boundary.outside import Preparation, wrong_outside
from thunder_core.workflow.fault_localization.captures import Capture
from thunder_core.workflow.fault_localization.guard_probes import wrong_guards
from thunder_core.workflow.fault_localization.judgement import Deadline
from thunder_core.workflow.fault_localization.own_inputs import own_inputs
from thunder_core.workflow.fault_localization.probes.calls import Call
from thunder_core.workflow.fault_localization.probes.unpacking import wrongly_unpacked
from thunder_core.workflow.fault_localization.recording import inputs_by_name
from thunder_core.workflow.fault_localization.rounding import ROUNDING, Allowance
from thunder_core.workflow.fault_localization.trace_examination import Examination
from thunder_core.workflow.validation.inside import InsideReport


def examine(
    program: Program,
    subject: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    seconds: float = 0.0,
    probe_guards: bool = True,
    thorough: bool = True,
    allowance: Allowance = ROUNDING,
) -> InsideReport:
    """Examine a program on the arguments of a call that it is for, for at most so many seconds (0: for all it takes).

    Each executor's line, each transform, and the backward are compared with eager PyTorch, what the prologue unpacks
    with what origins name; then, unless there is a fault, what the program returns with what eager PyTorch does. With
    `probe_guards` calls that differ slightly are tried, too; where that is `thorough`, functions, hooks and settings
    are replaced for it. The arguments and a module's buffers are left as they are, and so are the random numbers.
    Raises what the prologue raises for arguments that the program is not for.
    """
    examination, call = Examination(program, Deadline(seconds), allowance), Call(subject, args, kwargs)
    with examining(), outcome_undone(call):
        taken, own_kwargs = arguments = call.own_arguments()
        preparation = Preparation(arguments, *program.prepare(subject, taken, own_kwargs))
        roots = {"module": subject, "args": taken, "kwargs": own_kwargs}
        computation, prologue = program.last("computation"), program.last("prologue")
        examination.faults += wrongly_unpacked(program.traces("computation")[0], preparation.inputs, roots, prologue)
        inputs = own_inputs(inputs_by_name(computation, preparation.inputs), *program.traces("computation"))
        states = RandomStates.now(inputs)
        examination.examine_computation(inputs, states)
        if not examination.raises:
            with examination.noting("the backward"):
                examine_backward(examination, inputs, states, seed=0)
        compares_results = allowance.is_strict and not examination.faults
        if compares_results:
            states.restore()
            with examination.noting("the call"):
                examination.faults += wrong_outside(
                    program, call, preparation, states, has_room=examination.has_room, thorough=thorough
                )
        if probe_guards and compares_results and not examination.faults:
            with examination.noting("guards"):
                examination.faults += wrong_guards(program, call, examination.deadline, thorough=thorough)
    return examination.report()


def examine_computation(capture: Capture, *, seconds: float = 0.0, allowance: Allowance = ROUNDING) -> InsideReport:
    """Examine the computation of a program on inputs that were captured, for at most so many seconds."""
    examination = Examination(capture.program, Deadline(seconds), allowance)
    if capture.inputs is not None:
        states = RandomStates.now(capture.inputs)
        try:
            with examining():
                examination.examine_computation(capture.inputs, capture.states)
        finally:
            states.restore()
    return examination.report()


@contextmanager
def outcome_undone(call: Call) -> Iterator[None]:
    """Put the buffers and attributes of a module, and the random numbers, back behind the block."""
    tensors = {str(place): value for place, value in enumerate(call.kwargs.values()) if isinstance(value, torch.Tensor)}
    states = RandomStates.now(tensors)
    with call.undone():
        try:
            yield
        finally:
            states.restore()
