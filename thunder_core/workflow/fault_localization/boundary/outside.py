"""The outside of the computation: how it was acquired, what is returned, and what state is left behind a call."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.claiming.comparison import Difference
from thunder_core.backend.runtime.program import Program
from thunder_core.tracing.capture.torch_facts.settings import settings_of
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.boundary.acquisition import follow
from thunder_core.workflow.fault_localization.boundary.eager_calls import (
    EagerCall,
    RecordCalls,
    RepeatedRecording,
    room_beside,
)
from thunder_core.workflow.fault_localization.boundary.epilogue import (
    OTHER_VALUES,
    HandedOut,
    is_close,
    misplaced_result,
    returned_leaves,
)
from thunder_core.workflow.fault_localization.line_faults import return_fault
from thunder_core.workflow.fault_localization.own_inputs import own_inputs
from thunder_core.workflow.fault_localization.probes.calls import Arguments, Call
from thunder_core.workflow.fault_localization.recording import inputs_by_name
from thunder_core.workflow.validation.inside import Fault
from thunder_core.workflow.validation.leaves import Leaves
from thunder_core.workflow.validation.report import AFTER_CALL
from thunder_core.workflow.validation.state import Observed, changed_paths


@dataclass(frozen=True)
class Preparation:
    """The results of a prologue on copies of arguments: for the computation, and for the epilogue to write to."""

    arguments: Arguments
    inputs: tuple[Any, ...]
    outside: tuple[Any, ...]


def wrong_outside(
    program: Program,
    call: Call,
    preparation: Preparation,
    states: RandomStates,
    *,
    has_room: Callable[[Trace], bool],
    thorough: bool,
) -> Iterator[Fault]:
    """The fault of what lies around the computation: it was acquired wrongly, or the epilogue hands it out wrongly.

    The calls of eager PyTorch are looked at one by one where something differs, or where that is `thorough`, as far as
    a trace `has_room` for that in memory.
    """
    acquired = program.traces("computation")[0]
    inputs = own_inputs(inputs_by_name(acquired, preparation.inputs), *program.traces("computation"))
    with call.undone():
        ours, handed_out = run_program(program, call, preparation)
    with call.undone():
        theirs = run_eager(call, states)
    paths = {**ours.changed, **theirs.changed}
    mine, right = (one.observed.with_state_at(paths).leaves for one in (ours, theirs))
    unwritten = [f"{path}{AFTER_CALL}" for path in theirs.replaced if path not in ours.replaced]
    fault = misplaced_result(program.last("epilogue"), handed_out, mine, right, unwritten)
    if (thorough or fault is not None or not has_close_values(mine, right)) and has_room(acquired):
        followed = follow(acquired, inputs, states, eager_calls(call, call.own_arguments, states, room_for(acquired)))
        fault = followed.fault or fault or wrong_result(acquired, followed.values, mine, right)
    yield from [] if fault is None else [fault]


@dataclass(frozen=True)
class Run:
    """The results of a call and the state behind it, and the paths at which that is another than before.

    `replaced` are those at which there is another tensor, whatever its values.
    """

    observed: Observed
    changed: dict[str, None]
    replaced: list[str]


def run_of(output: object, call: Call, arguments: Arguments, before: Leaves, values: Leaves) -> Run:
    """The run that has returned an output; `before` has the state of before the call, and `values` copies of it."""
    after = call.state(arguments)
    state = copied_leaves(after)
    replaced = [
        path
        for path, tensor in after.tensors.items()
        if path in before.tensors and tensor.data_ptr() != before.tensors[path].data_ptr()
    ]
    return Run(Observed(copied_leaves(returned_leaves(output)), state), changed_paths(values, state), replaced)


def run_program(program: Program, call: Call, preparation: Preparation) -> tuple[Run, HandedOut]:
    """The run of a program, and what its epilogue has handed out."""
    args, kwargs = preparation.arguments
    before = call.state(preparation.arguments)
    values = copied_leaves(before)
    results = program.compute(preparation.inputs)
    output, variables = with_variables(program._epilogue, (*preparation.outside, *results))
    proxies = program.last("epilogue").inputs[len(preparation.outside) :]
    names = {proxy.name: value for proxy, value in zip(proxies, results, strict=False)}
    held = {**{str(place): value for place, value in enumerate(args)}, **kwargs}
    run = run_of(output, call, preparation.arguments, before, values)
    return run, HandedOut(output, call.subject, held, names, variables)


def run_eager(call: Call, states: RandomStates) -> Run:
    """The run of eager PyTorch."""
    args, kwargs = arguments = call.own_arguments()
    before = call.state(arguments)
    values = copied_leaves(before)
    states.restore()
    return run_of(call.subject(*args, **kwargs), call, arguments, before, values)


def eager_calls(
    call: Call, own_arguments: Callable[[], Arguments], states: RandomStates, room: float
) -> list[EagerCall]:
    """The calls of PyTorch that the subject makes for arguments, which leave no trace behind.

    So many bytes of what they return are held at a time.
    """
    is_differentiated = torch.is_grad_enabled()

    def run(recorder: RecordCalls) -> None:
        args, kwargs = own_arguments()
        before = states.renewed()
        with call.undone(), torch.set_grad_enabled(is_differentiated), recorder:
            states.restore()
            call.subject(*args, **kwargs)
        before.restore()

    return RepeatedRecording(call.subject, run, room).calls


def room_for(acquired: Trace) -> float:
    """The bytes of results of eager calls that are held at a time: a part of what the program reads, its weights.

    All are held where the trace changes settings of PyTorch, under which eager PyTorch would run again.
    """
    if settings_of(acquired.bound_symbols):
        return math.inf
    return room_beside(sum(proxy.bytes for proxy in acquired.inputs if isinstance(proxy, TensorProxy)))


def has_close_values(ours: Leaves, theirs: Leaves) -> bool:
    """Whether tensors have the same values but for rounding."""
    return all(is_close(ours.tensors.get(path), tensor) for path, tensor in theirs.tensors.items())


def wrong_result(acquired: Trace, computed: Sequence[Any], ours: Leaves, theirs: Leaves) -> Fault | None:
    """The fault of an acquired computation that has `computed` something else than eager PyTorch has at a path."""
    path = unlike_path(computed, ours, theirs)
    return None if path is None else return_fault("acquisition", acquired, path, Difference(OTHER_VALUES.format(path)))


def unlike_path(computed: Sequence[Any], ours: Leaves, theirs: Leaves) -> str | None:
    """The first path at which eager PyTorch has a value that is neither ours nor was `computed`."""
    for path, tensor in theirs.tensors.items():
        if not any(is_close(one, tensor) for one in (ours.tensors.get(path), *computed)):
            return path
    return None


def copied_leaves(leaves: Leaves) -> Leaves:
    """The leaves, with copies of the tensors."""
    tensors = {path: tensor.detach().clone() for path, tensor in leaves.tensors.items()}
    return Leaves(tensors, dict(leaves.structure), dict(leaves.opaque))


def with_variables(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, dict[str, Any]]:
    """The result of a function, and its local variables at its end."""
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
