"""The examination of a program on one call: what it unpacks, computes, differentiates and returns, and its guards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch

from thunder_core.claiming.check import RandomStates, copied
from thunder_core.fault_localization.acquisition import RecordCalls, first_wrong_call
from thunder_core.fault_localization.backward import examine_backward
from thunder_core.fault_localization.captures import Capture
from thunder_core.fault_localization.epilogue import misplaced_results, names_of_results
from thunder_core.fault_localization.guard_probes import Call, first_unequal, wrong_guards
from thunder_core.fault_localization.judgement import Deadline
from thunder_core.fault_localization.recording import inputs_by_name, record
from thunder_core.fault_localization.rounding import ROUNDING, Allowance
from thunder_core.fault_localization.trace_examination import Examination
from thunder_core.fault_localization.unpacking import wrongly_unpacked
from thunder_core.runtime.program import Program
from thunder_core.validation.comparison import buffers_kept
from thunder_core.validation.inside import Fault, InsideReport
from thunder_core.validation.leaves import leaves_of


def examine(
    program: Program,
    subject: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    seconds: float = 0.0,
    probe_guards: bool = True,
    allowance: Allowance = ROUNDING,
) -> InsideReport:
    """Examine a program on the arguments of a call that it is for, for at most so many seconds (0: for all it takes).

    Each executor's line, each transform, and the backward are compared with eager PyTorch, what the prologue unpacks
    with what origins name; then, unless there is a fault, what the program returns with what eager PyTorch does. With
    `probe_guards` calls that differ a little are tried, too. The arguments and a module's buffers are left as they are,
    and so are the random numbers. Raises what the prologue raises for arguments that the program is not for.
    """
    examination, call = Examination(program, Deadline(seconds), allowance), Call(subject, args, kwargs)
    with outcome_undone(call):
        taken, own_kwargs = call.own_arguments()
        prepared, outside = program.prepare(subject, taken, own_kwargs)
        roots = {"module": subject, "args": taken, "kwargs": own_kwargs}
        computation, prologue = program.last("computation"), program.last("prologue")
        examination.faults += wrongly_unpacked(program.traces("computation")[0], prepared, roots, prologue)
        inputs = copied(inputs_by_name(computation, prepared))
        states = RandomStates.now(inputs)
        examination.examine_computation(inputs, states)
        with examination.noting("the backward"):
            examine_backward(examination, inputs, states, seed=0)
        compares_results = allowance.is_strict and not examination.faults
        if compares_results:
            states.restore()
            with examination.noting("the call"):
                examination.faults += wrong_outside(program, call, prepared, outside, states)
        if probe_guards and compares_results and not examination.faults:
            with examination.noting("guards"):
                examination.faults += wrong_guards(program, call, examination.deadline)
    return examination.report()


def examine_computation(capture: Capture, *, seconds: float = 0.0, allowance: Allowance = ROUNDING) -> InsideReport:
    """Examine the computation of a program on inputs that were captured, for at most so many seconds."""
    examination = Examination(capture.program, Deadline(seconds), allowance)
    if capture.inputs is not None:
        states = RandomStates.now(capture.inputs)
        try:
            examination.examine_computation(capture.inputs, capture.states)
        finally:
            states.restore()
    return examination.report()


@contextmanager
def outcome_undone(call: Call) -> Iterator[None]:
    """Put the buffers of a module and the random numbers back behind the block."""
    model = call.subject
    tensors = {str(place): value for place, value in enumerate(call.kwargs.values()) if isinstance(value, torch.Tensor)}
    states = RandomStates.now(tensors)
    with buffers_kept(model) if isinstance(model, torch.nn.Module) else nullcontext():
        try:
            yield
        finally:
            states.restore()


def wrong_outside(
    program: Program, call: Call, prepared: tuple[Any, ...], outside: tuple[Any, ...], states: RandomStates
) -> Iterator[Fault]:
    """The fault of what lies around the computation: it was acquired wrongly, or the epilogue hands it out wrongly."""
    computation = program.traces("computation")[0]
    inputs = copied(inputs_by_name(computation, prepared))
    results = program.compute(prepared)
    ours = leaves_of(program._epilogue(*outside, *results))
    with RecordCalls() as recorder:
        states.restore()
        args, kwargs = call.own_arguments()
        theirs = leaves_of(call.subject(*args, **kwargs))
    if not first_unequal(ours, theirs):
        return
    fault = first_wrong_call(computation, record(computation, inputs, states), recorder.calls)
    fault = fault or misplaced_results(
        program.last("epilogue"), names_of_results(computation, results), ours.tensors, theirs.tensors
    )
    if fault is not None:
        yield fault
