"""The check of the code around a computation: the tracing, the returned values, and the state after a call."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.claiming.comparison import Difference
from thunder_core.backend.runtime.program import Program
from thunder_core.tracing.capture.torch_facts.settings import settings_of
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.boundary.acquisition import evaluate_with_eager_results
from thunder_core.workflow.fault_localization.boundary.eager_calls import (
    EagerCall,
    RecordCalls,
    RepeatedRecording,
    bytes_for_results,
)
from thunder_core.workflow.fault_localization.boundary.epilogue import (
    OTHER_VALUES,
    EpilogueOutput,
    is_close,
    misplaced_result,
    returned_leaves,
)
from thunder_core.workflow.fault_localization.input_copies import copy_inputs
from thunder_core.workflow.fault_localization.line_faults import return_fault
from thunder_core.workflow.fault_localization.probes.calls import Arguments, SubjectCall
from thunder_core.workflow.fault_localization.recording import inputs_by_name
from thunder_core.workflow.fault_localization.time_limit import limit_time
from thunder_core.workflow.validation.internal_check import Fault
from thunder_core.workflow.validation.leaves import Leaves
from thunder_core.workflow.validation.report import AFTER_CALL
from thunder_core.workflow.validation.state import ObservedCall, changed_paths


@dataclass(frozen=True)
class PrologueResult:
    """The results of a prologue on copies of arguments: inputs of the computation, and objects for the epilogue."""

    arguments: Arguments
    inputs: tuple[Any, ...]
    outside: tuple[Any, ...]


def wrong_outside(
    program: Program,
    call: SubjectCall,
    preparation: PrologueResult,
    states: RandomStates,
    *,
    has_room: Callable[[Trace], bool],
    is_thorough: bool,
) -> Iterator[Fault]:
    """Yield the fault of the code around the computation: a wrong trace, or an epilogue with a wrong result.

    If a result differs, or if `is_thorough` is set, each call of eager PyTorch is compared; `has_room` says whether a
    trace fits into memory.
    """
    acquired = program.traces("computation")[0]
    inputs = copy_inputs(inputs_by_name(acquired, preparation.inputs), *program.traces("computation"))
    with call.preserve_state():
        actual, epilogue_output = run_program(program, call, preparation)
    with call.preserve_state():
        expected = run_eager(call, states)
    paths = {**actual.changed, **expected.changed}
    program_result, eager_result = (result.observed.with_state_at(paths).leaves for result in (actual, expected))
    unwritten = [f"{path}{AFTER_CALL}" for path in expected.replaced if path not in actual.replaced]
    fault = misplaced_result(program.last("epilogue"), epilogue_output, program_result, eager_result, unwritten)
    if (is_thorough or fault is not None or not has_close_values(program_result, eager_result)) and has_room(acquired):
        with limit_time(None) if fault is not None else nullcontext():
            calls = eager_calls(call, call.copy_arguments, states, room_for(acquired))
            evaluation = evaluate_with_eager_results(acquired, inputs, states, calls)
        fault = evaluation.fault or fault or wrong_result(acquired, evaluation.values, program_result, eager_result)
    yield from [] if fault is None else [fault]


@dataclass(frozen=True)
class CallResult:
    """The results of a call with the state after it, and the paths at which the state has changed.

    `replaced` are the paths whose tensor is another object after the call, with equal or different values.
    """

    observed: ObservedCall
    changed: dict[str, None]
    replaced: list[str]


def call_result(output: object, call: SubjectCall, arguments: Arguments, before: Leaves, values: Leaves) -> CallResult:
    """Return the result of a call. `before` is the state before the call, and `values` a copy of that state."""
    after = call.state(arguments)
    state = copied_leaves(after)
    replaced = [
        path
        for path, tensor in after.tensors.items()
        if path in before.tensors and tensor.data_ptr() != before.tensors[path].data_ptr()
    ]
    return CallResult(
        ObservedCall(copied_leaves(returned_leaves(output)), state), changed_paths(values, state), replaced
    )


def run_program(program: Program, call: SubjectCall, preparation: PrologueResult) -> tuple[CallResult, EpilogueOutput]:
    """Run a program, and also return the output and the variables of its epilogue."""
    args, kwargs = preparation.arguments
    before = call.state(preparation.arguments)
    values = copied_leaves(before)
    results = program.compute(preparation.inputs)
    output, variables = with_variables(program._epilogue, (*preparation.outside, *results))
    proxies = program.last("epilogue").inputs[len(preparation.outside) :]
    names = {proxy.name: value for proxy, value in zip(proxies, results, strict=False)}
    arguments = {**{str(index): value for index, value in enumerate(args)}, **kwargs}
    run = call_result(output, call, preparation.arguments, before, values)
    return run, EpilogueOutput(output, call.subject, arguments, names, variables)


def run_eager(call: SubjectCall, states: RandomStates) -> CallResult:
    """Run the call in eager PyTorch."""
    args, kwargs = arguments = call.copy_arguments()
    before = call.state(arguments)
    values = copied_leaves(before)
    states.restore()
    return call_result(call.subject(*args, **kwargs), call, arguments, before, values)


def eager_calls(
    call: SubjectCall, copy_arguments: Callable[[], Arguments], states: RandomStates, room: float
) -> list[EagerCall]:
    """Return the calls of PyTorch that the subject makes for arguments; their effects are undone.

    At most `room` bytes of their results are in memory at a time.
    """
    is_differentiated = torch.is_grad_enabled()

    def run(recorder: RecordCalls) -> None:
        args, kwargs = copy_arguments()
        before = states.current_states()
        with call.preserve_state(), torch.set_grad_enabled(is_differentiated), recorder:
            states.restore()
            call.subject(*args, **kwargs)
        before.restore()

    return RepeatedRecording(call.subject, run, room).calls


def room_for(acquired: Trace) -> float:
    """Return the number of bytes of eager results to keep in memory: a part of the size of the program's inputs.

    The limit is infinite if the trace changes settings of PyTorch, because eager PyTorch would run again under these
    settings.
    """
    if settings_of(acquired.bound_symbols):
        return math.inf
    return bytes_for_results(sum(proxy.bytes for proxy in acquired.inputs if isinstance(proxy, TensorProxy)))


def has_close_values(actual: Leaves, expected: Leaves) -> bool:
    """Whether all tensors have the same values except for rounding."""
    return all(is_close(actual.tensors.get(path), tensor) for path, tensor in expected.tensors.items())


def wrong_result(acquired: Trace, computed: Sequence[Any], actual: Leaves, expected: Leaves) -> Fault | None:
    """Return the fault of a traced computation whose results lack eager PyTorch's value at some path, or None."""
    path = first_differing_path(computed, actual, expected)
    return None if path is None else return_fault("acquisition", acquired, path, Difference(OTHER_VALUES.format(path)))


def first_differing_path(computed: Sequence[Any], actual: Leaves, expected: Leaves) -> str | None:
    """Return the first path whose eager value differs from the program's and is not among `computed`, or None."""
    for path, tensor in expected.tensors.items():
        if not any(is_close(value, tensor) for value in (actual.tensors.get(path), *computed)):
            return path
    return None


def copied_leaves(leaves: Leaves) -> Leaves:
    """Return the leaves with copies of the tensors."""
    tensors = {path: tensor.detach().clone() for path, tensor in leaves.tensors.items()}
    return Leaves(tensors, dict(leaves.structure), dict(leaves.opaque))


def with_variables(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, dict[str, Any]]:
    """Call a function, and return its result and its local variables at the end."""
    variables: dict[str, Any] = {}

    def watch(frame: Any, event: str, _: object) -> None:
        if event == "return" and frame.f_code is getattr(function, "__code__", None):
            variables.update(frame.f_locals)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        return function(*args), variables
    finally:
        sys.setprofile(before)
