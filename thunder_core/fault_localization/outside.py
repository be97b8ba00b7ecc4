"""What lies around the computation: how it was acquired, what is returned and what state is left behind a call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from thunder_core.claiming.check import RandomStates, copied
from thunder_core.fault_localization.acquisition import EagerCall, RecordCalls, first_wrong_call
from thunder_core.fault_localization.calls import Arguments, Call
from thunder_core.fault_localization.epilogue import HandedOut, misplaced_result, returned_leaves
from thunder_core.fault_localization.recording import inputs_by_name, record
from thunder_core.runtime.program import Program
from thunder_core.validation.inside import Fault
from thunder_core.validation.leaves import Leaves
from thunder_core.validation.state import Observed, changed_paths


@dataclass(frozen=True)
class Preparation:
    """What a prologue makes of copies of arguments: what the computation takes, and what the epilogue writes to."""

    arguments: Arguments
    inputs: tuple[Any, ...]
    outside: tuple[Any, ...]


def wrong_outside(program: Program, call: Call, preparation: Preparation, states: RandomStates) -> Iterator[Fault]:
    """The fault of what lies around the computation: it was acquired wrongly, or the epilogue hands it out wrongly."""
    acquired = program.traces("computation")[0]
    inputs = copied(inputs_by_name(acquired, preparation.inputs))
    before = copied_leaves(call.state(preparation.arguments))
    with call.undone():
        ours, handed_out = run_program(program, call, preparation)
    with call.undone():
        theirs, calls = run_eager(call, states)
    paths = changed_paths(before, ours.state) | changed_paths(before, theirs.state)
    mine, right = ours.with_state_at(paths).leaves, theirs.with_state_at(paths).leaves
    fault = misplaced_result(program.last("epilogue"), handed_out, mine, right)
    if fault is not None:
        yield first_wrong_call(acquired, record(acquired, inputs, states), calls) or fault


def run_program(program: Program, call: Call, preparation: Preparation) -> tuple[Observed, HandedOut]:
    """What a program returns and leaves behind, and what its epilogue made it of."""
    results = program.compute(preparation.inputs)
    output, variables = with_variables(program._epilogue, (*preparation.outside, *results))
    observed = Observed(copied_leaves(returned_leaves(output)), copied_leaves(call.state(preparation.arguments)))
    returned = zip(program.last("computation").output, results, strict=False)
    names = {getattr(proxy, "name", ""): value for proxy, value in returned}
    args, kwargs = preparation.arguments
    held = {**{str(place): value for place, value in enumerate(args)}, **kwargs}
    return observed, HandedOut(output, call.subject, held, names, variables)


def run_eager(call: Call, states: RandomStates) -> tuple[Observed, list[EagerCall]]:
    """What eager PyTorch returns and leaves behind, and the calls that it makes."""
    args, kwargs = call.own_arguments()
    states.restore()
    with RecordCalls() as recorder:
        output = call.subject(*args, **kwargs)
    return Observed(copied_leaves(returned_leaves(output)), copied_leaves(call.state((args, kwargs)))), recorder.calls


def copied_leaves(leaves: Leaves) -> Leaves:
    """The leaves, with copies of the tensors."""
    tensors = {path: tensor.detach().clone() for path, tensor in leaves.tensors.items()}
    return Leaves(tensors, dict(leaves.structure), dict(leaves.opaque))


def with_variables(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, dict[str, Any]]:
    """What a function returns, and its local variables at its end."""
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
