"""Evidence of a fault: the operations of the wrong line, and the values of their inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.claiming.claim_checks import UnclaimedProgram, reference_of
from thunder_core.backend.claiming.copies import Values
from thunder_core.backend.fusion.wrapping import unwrap
from thunder_core.backend.runtime.program import Program
from thunder_core.passes.autodiff.program_derivative import ProgramDerivative
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.printer import bound_symbol_text
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.backward import backward_inputs
from thunder_core.workflow.fault_localization.examination import preserve_call_state
from thunder_core.workflow.fault_localization.input_copies import copy_inputs
from thunder_core.workflow.fault_localization.probes.calls import SubjectCall
from thunder_core.workflow.fault_localization.recording import inputs_by_name, record
from thunder_core.workflow.fault_localization.stages import definitions, is_equal
from thunder_core.workflow.fault_localization.trace_examination import latest_unclaimed_stage, without_freeing
from thunder_core.workflow.validation.internal_check import Fault


@dataclass(frozen=True)
class Evidence:
    """The operations that a wrong line replaces, and the values of their inputs.

    For a wrong transform, `before` has the operations that compute the same name before the transform.
    """

    operations: tuple[BoundSymbol, ...]
    values: Values
    before: tuple[BoundSymbol, ...] = ()


def evidence_of(
    program: Program, fault: Fault, subject: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Evidence | None:
    """Return the evidence of a fault in a computation or a backward; None for a fault without an operation."""
    if fault.trace not in ("computation", "backward") or fault.kind == "acquisition":
        return None
    call = SubjectCall(subject, args, kwargs)
    with preserve_call_state(call):
        prepared, _ = program.prepare(subject, *call.copy_arguments())
        inputs = copy_inputs(inputs_by_name(program.last("computation"), prepared), *program.traces("computation"))
        states = RandomStates.now(inputs)
        with torch.no_grad():
            traces = without_freeing(program.traces(fault.trace))
            values = inputs if fault.trace == "computation" else values_of_backward(program, inputs, states)
            find = FINDERS.get(fault.kind, evidence_of_derivative)
            return find(traces, fault, values, states)


def values_of_backward(program: Program, inputs: Values, states: RandomStates) -> Values:
    """Return the values that a backward may read, for the results that it was compiled for."""
    derivative = program.derivative
    assert isinstance(derivative, ProgramDerivative)
    return backward_inputs(derivative, program.stages_of("backward")[-1].has_cotangent, inputs, states, seed=0).plain


def evidence_of_executor(
    traces: Sequence[Trace], fault: Fault, values: Values, states: RandomStates
) -> Evidence | None:
    """Return the evidence of a claimed line: the operations that it replaces, and the values that it reads."""
    claimed, available = traces[-1], {**copy_inputs(values, traces[-1]), **traces[-1].constants}
    states.restore()
    for bsym in unwrap(claimed.bound_symbols):
        if bound_symbol_text(bsym) == fault.line:
            unclaimed = latest_unclaimed_stage(traces[:-1])
            operations = reference_of(bsym, UnclaimedProgram.of(unclaimed)) or whole_operation(fault.result, unclaimed)
            calls = tuple(operation for operation in operations if operation.symbol.name != "python.code")
            return Evidence(calls, available) if calls else None
        evaluate((bsym,), available)
    return None


def whole_operation(name: str, unclaimed: Trace) -> tuple[BoundSymbol, ...]:
    """Return the operation that defines a name before claiming; an executor may run one operation in several lines."""
    bsym = definitions(unclaimed).get(name)
    return () if bsym is None else (bsym,)


def evidence_of_transform(
    traces: Sequence[Trace], fault: Fault, values: Values, states: RandomStates
) -> Evidence | None:
    """Return the evidence of a transform: the lines, before and after it, that compute a name from common values."""
    index = next((n for n, trace in enumerate(traces) if n and trace.made_by == fault.by), None)
    if index is None:
        return None
    before, after = traces[index - 1], traces[index]
    old, new = (record(trace, values, states).final for trace in (before, after))
    shared = {name for name in old.keys() & new.keys() if is_equal(old[name], new[name])}
    return Evidence(
        tuple(operations_for(fault.result, after, shared)),
        {name: old[name] for name in shared} | {name: new[name] for name in new.keys() - old.keys()},
        tuple(operations_for(fault.result, before, shared)),
    )


def operations_for(name: str, trace: Trace, available: set[str]) -> list[BoundSymbol]:
    """Return the bound symbols of a trace that compute a name from known names, in order."""
    made_by, needed, pending = definitions(trace), set[int](), [name]
    while pending:
        bsym = made_by.get(pending.pop())
        if bsym is not None and id(bsym) not in needed:
            needed.add(id(bsym))
            pending += [proxy.name for proxy in bsym.inputs if proxy.name not in available]
    return [bsym for bsym in trace.bound_symbols if id(bsym) in needed]


def evidence_of_derivative(
    traces: Sequence[Trace], fault: Fault, values: Values, states: RandomStates
) -> Evidence | None:
    """Return the evidence of a wrong derivative: the differentiated line of the forward, and its inputs."""
    lines = [bsym for trace in traces for bsym in trace.bound_symbols if bound_symbol_text(bsym) == fault.line]
    derived = next((bsym.derives for bsym in lines if bsym.derives is not None), None)
    texts = {bound_symbol_text(bsym.derives): bsym.derives for bsym in traces[0].bound_symbols if bsym.derives}
    bsym = derived or texts.get(fault.line)
    return None if bsym is None else Evidence((bsym,), values)


FINDERS: Mapping[str, Callable[[Sequence[Trace], Fault, Values, RandomStates], Evidence | None]] = {
    "executor": evidence_of_executor,
    "nondeterminism": evidence_of_executor,
    "transform": evidence_of_transform,
}
