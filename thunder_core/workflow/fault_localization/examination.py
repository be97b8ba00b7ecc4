"""The internal check of a program on one call: its unpacking, computation, derivative, results and guards."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.runtime.program import Program
from thunder_core.tracing.library.examination import examining
from thunder_core.workflow.fault_localization.backward import examine_backward
from thunder_core.workflow.fault_localization.boundary.outside import PrologueResult, wrong_outside
from thunder_core.workflow.fault_localization.captures import CapturedInputs
from thunder_core.workflow.fault_localization.guard_probes import wrong_guards
from thunder_core.workflow.fault_localization.input_copies import copy_inputs
from thunder_core.workflow.fault_localization.probes.calls import SubjectCall
from thunder_core.workflow.fault_localization.probes.unpacking import unpacking_faults
from thunder_core.workflow.fault_localization.recording import inputs_by_name
from thunder_core.workflow.fault_localization.rounding import ROUNDING, Allowance
from thunder_core.workflow.fault_localization.time_limit import Deadline, limit_time
from thunder_core.workflow.fault_localization.trace_examination import Examination
from thunder_core.workflow.validation.internal_check import InternalCheck

FORWARD_SHARE = 0.5  # the forward's share of the time limit, if there is a backward


def examine(
    program: Program,
    subject: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    seconds: float = 0.0,
    probe_guards: bool = True,
    is_thorough: bool = True,
    allowance: Allowance = ROUNDING,
) -> InternalCheck:
    """Check a program on the arguments of an accepted call, for at most `seconds` seconds (0: without a limit).

    The check compares the lines of executors, the transforms and the backward with eager PyTorch, and the unpacked
    inputs with their origins. If there is no fault, it compares the program's results with eager PyTorch's. If
    `probe_guards` is set, it also tries calls that differ slightly from this call; with `is_thorough`, these calls
    include replaced functions, hooks and settings. The arguments, a module's buffers and the random state are restored.
    Raises the errors of the prologue if the program does not accept the arguments.
    """
    examination, call = Examination(program, Deadline(seconds), allowance), SubjectCall(subject, args, kwargs)
    with examining(), preserve_call_state(call), limit_time(examination.deadline):
        own_args, own_kwargs = arguments = call.copy_arguments()
        preparation = PrologueResult(arguments, *program.prepare(subject, own_args, own_kwargs))
        roots = {"module": subject, "args": own_args, "kwargs": own_kwargs}
        computation, prologue = program.last("computation"), program.last("prologue")
        examination.faults += unpacking_faults(program.traces("computation")[0], preparation.inputs, roots, prologue)
        inputs = copy_inputs(inputs_by_name(computation, preparation.inputs), *program.traces("computation"))
        states = RandomStates.now(inputs)
        with examination.limit_share(FORWARD_SHARE if program.derivative is not None else 1.0):
            examination.examine_computation(inputs, states)
        if not examination.raises:
            with examination.note_errors("the backward"):
                examine_backward(examination, inputs, states, seed=0)
        compares_results = allowance.is_strict and not examination.faults
        if compares_results:
            states.restore()
            with examination.note_errors("the call"):
                examination.faults += wrong_outside(
                    program, call, preparation, states, has_room=examination.has_room, is_thorough=is_thorough
                )
        if probe_guards and compares_results and not examination.faults:
            with examination.note_errors("guards"):
                examination.faults += wrong_guards(program, call, examination.deadline, is_thorough=is_thorough)
    return examination.report()


def examine_computation(
    capture: CapturedInputs, *, seconds: float = 0.0, allowance: Allowance = ROUNDING
) -> InternalCheck:
    """Check the computation of a program on captured inputs, for at most `seconds` seconds."""
    examination = Examination(capture.program, Deadline(seconds), allowance)
    if capture.inputs is not None:
        states = RandomStates.now(capture.inputs)
        try:
            with examining(), limit_time(examination.deadline):
                examination.examine_computation(capture.inputs, capture.states)
        finally:
            states.restore()
    return examination.report()


@contextmanager
def preserve_call_state(call: SubjectCall) -> Iterator[None]:
    """Restore a module's buffers and attributes, and the random state, after the block."""
    states = RandomStates.now(call.tensors)
    with call.preserve_state():
        try:
            yield
        finally:
            states.restore()
