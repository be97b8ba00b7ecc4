"""Guard probes: calls that differ slightly from the traced call. A program must refuse them or compute them correctly.

Most probes run only the prologue. If the prologue accepts a probe, the program runs and its results are compared with
eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.runtime.program import Program
from thunder_core.foundation.errors import NotComparable
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.workflow.fault_localization.boundary.acquisition import evaluate_with_eager_results
from thunder_core.workflow.fault_localization.boundary.epilogue import OTHER_VALUES
from thunder_core.workflow.fault_localization.boundary.outside import eager_calls, first_differing_path, room_for
from thunder_core.workflow.fault_localization.claims import examine_claims
from thunder_core.workflow.fault_localization.input_copies import copy_inputs
from thunder_core.workflow.fault_localization.probes.argument_probes import argument_probes
from thunder_core.workflow.fault_localization.probes.calls import Arguments, SubjectCall
from thunder_core.workflow.fault_localization.probes.model_probes import model_probes, process_probes
from thunder_core.workflow.fault_localization.probes.path_probes import path_probes
from thunder_core.workflow.fault_localization.probes.probe import Probe
from thunder_core.workflow.fault_localization.recording import inputs_by_name
from thunder_core.workflow.fault_localization.time_limit import Deadline
from thunder_core.workflow.fault_localization.trace_examination import latest_unclaimed_stage, without_freeing
from thunder_core.workflow.validation.internal_check import Fault
from thunder_core.workflow.validation.leaves import Leaves, leaves_of, require_same_structure

REFUSAL_ERRORS = ("GuardFailed", "UnexpectedValue")  # the errors by which a running program refuses a call
MAX_MESSAGE = 200  # characters of an error's text


def probes(program: Program, call: SubjectCall, *, is_thorough: bool) -> Iterator[Probe]:
    """Yield calls that a program must refuse, or compute as eager PyTorch does.

    If `is_thorough` is set, the probes also replace functions, hooks, classes and settings, and change the size of a
    single tensor where several tensors have a common size.
    """
    yield from argument_probes(call, each_size=is_thorough)
    yield from path_probes(program, call, functions=is_thorough)
    if is_thorough:
        yield from process_probes(call)
        yield from model_probes(program, call)


def wrong_guards(
    program: Program, call: SubjectCall, deadline: Deadline, seed: int = 0, *, is_thorough: bool = True
) -> Iterator[Fault]:
    """Yield a fault for each probe that the prologue accepts, but for which the program differs from eager PyTorch.

    If `is_thorough` is not set, a program that raises an error is accepted, because it returns no wrong result.
    """
    devices = {tensor.device for tensor in call.tensors.values() if tensor.is_cuda}
    for probe in probes(program, call, is_thorough=is_thorough):
        if deadline.is_over:
            return
        with torch.random.fork_rng(devices=list(devices)), probe.changed:
            difference = difference_of(program, call, probe.arguments, seed, accepts_error=not is_thorough)
        if difference:
            yield Fault(
                kind="guard",
                by="trace",
                trace="prologue",
                line=probe.guard(program),
                result=probe.path,
                difference=f"with {probe.what} {difference}",
            )


def difference_of(
    program: Program,
    call: SubjectCall,
    arguments: Callable[[], Arguments],
    seed: int,
    *,
    accepts_error: bool = False,
) -> str:
    """Return how a program differs from eager PyTorch for a call; empty if the program refuses the call or is right.

    `arguments()` returns new arguments for each run.
    """
    args, kwargs = arguments()
    try:
        prepared = program.prepare(call.subject, args, dict(kwargs))
    except Exception:  # refused; a path may raise any error
        return ""
    again = arguments()
    with call.preserve_state():
        actual = outcome(lambda: program.run(*prepared), seed)
    with call.preserve_state():
        expected = outcome(lambda: call.subject(*again[0], **again[1]), seed)
    if isinstance(expected, str):
        return "" if isinstance(actual, str) else f"it runs, but eager PyTorch raises {expected}"
    if not isinstance(actual, str):
        return structure_difference(actual, expected) or value_difference(
            program, call, arguments, seed, actual, expected
        )
    is_right = accepts_error or actual.startswith(REFUSAL_ERRORS) or serves_ranges(program)
    return "" if is_right else f"it raises {actual}, but eager PyTorch does not"


def serves_ranges(program: Program) -> bool:
    """Whether a program has symbolic sizes. Such a program refuses incompatible sizes while it runs."""
    inputs = program.traces("computation")[0].inputs
    tensors = [proxy for proxy in inputs if isinstance(proxy, TensorProxy)]
    return any(isinstance(size, torch.SymInt) for tensor in tensors for size in tensor.shape)


def outcome(run: Callable[[], Any], seed: int) -> Leaves | str:
    """Return the tensors and the structure that a call returns, or the error that it raises, in words."""
    torch.manual_seed(seed)
    try:
        return leaves_of(run())
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:MAX_MESSAGE]


def structure_difference(actual: Leaves, expected: Leaves) -> str:
    """Return the first difference in structure from eager PyTorch's result, in words; empty if there is none."""
    try:
        require_same_structure(actual, expected)
    except NotComparable as error:
        return error.what
    for path, value in expected.tensors.items():
        if actual.tensors[path].requires_grad != value.requires_grad:
            return (
                f"`{path}` requires a gradient only {'in eager PyTorch' if value.requires_grad else 'in the program'}"
            )
    return ""


def value_difference(
    program: Program, call: SubjectCall, arguments: Callable[[], Arguments], seed: int, actual: Leaves, expected: Leaves
) -> str:
    """Return the first tensor whose values differ from eager PyTorch's, in words; empty if there is none.

    A larger difference than rounding is accepted if each line computes the same values as eager PyTorch from the same
    inputs, because the program then amplifies rounding.
    """
    if first_differing_path((), actual, expected) is None:
        return ""
    args, kwargs = arguments()
    with call.preserve_state():
        prepared, _ = program.prepare(call.subject, args, kwargs)
        acquired = program.traces("computation")[0]
        inputs = copy_inputs(inputs_by_name(acquired, prepared), acquired)
    torch.manual_seed(seed)
    states = RandomStates.now(inputs)
    faults = wrong_claims(program, prepared, states)
    if faults:
        return f"{faults[0].line}: {faults[0].difference}"
    evaluation = evaluate_with_eager_results(
        acquired, inputs, states, eager_calls(call, arguments, states, room_for(acquired))
    )
    if evaluation.fault is not None:
        return f"{evaluation.fault.line}: {evaluation.fault.difference}"
    path = first_differing_path(evaluation.values, actual, expected)
    return "" if path is None else OTHER_VALUES.format(path)


def wrong_claims(program: Program, inputs: tuple[Any, ...], states: RandomStates) -> tuple[Fault, ...]:
    """Return faults of the executors' lines whose results differ from eager PyTorch's on these inputs."""
    *stages, claimed = without_freeing(program.traces("computation"))
    values = copy_inputs(inputs_by_name(claimed, inputs), claimed)
    return examine_claims(claimed, latest_unclaimed_stage(stages), values, states, Deadline()).faults
