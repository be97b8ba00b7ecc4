"""The examination of a backward: its gradients beside autograd's, its stages, and its claimed lines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.claiming.copies import Values
from thunder_core.backend.claiming.double_precision import in_float64
from thunder_core.backend.runtime.program import Stage
from thunder_core.passes.autodiff.program_derivative import ProgramDerivative
from thunder_core.passes.autodiff.reverse_mode import ReverseSweep
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.derivatives import (
    Cotangents,
    autograd_gradients,
    gradient_fault,
    random_cotangents,
    wrong_gradient,
)
from thunder_core.workflow.fault_localization.judgement import OUT_OF_TIME
from thunder_core.workflow.fault_localization.recording import RecordedValues, record, recorded_in_double
from thunder_core.workflow.fault_localization.rounding import Allowance
from thunder_core.workflow.fault_localization.stages import Evaluated, first_difference
from thunder_core.workflow.fault_localization.trace_examination import Examination, without_freed
from thunder_core.workflow.validation.inside import Fault, NotCompared

NOT_COMPILED = "it was not compiled, or does not fit into memory"
DERIVED = "differentiate"  # makes the first stage of a backward


@dataclass(frozen=True)
class BackwardInputs:
    """The values that a backward may read: those of the forward, and cotangents; in float64, too, where there are."""

    plain: Values
    exact: Callable[[], Values | None]
    cotangents: Cotangents

    def of(self, trace: Trace, *, in_double: bool = False) -> Values | None:
        """The values of the inputs that a backward takes, by name; None in float64 where there are none."""
        values = self.exact() if in_double else self.plain
        return None if values is None else {proxy.name: values[proxy.name] for proxy in trace.inputs}


def examine_backward(examination: Examination, inputs: Values, states: RandomStates, seed: int) -> None:
    """Compare the backward with autograd, its stages with each other, and its claimed lines with eager PyTorch.

    The backward examined is the one that was compiled last, or, where none was yet, that for the gradients of all
    results. The cotangents are random numbers from a seed.
    """
    derivative = examination.program.derivative
    if not isinstance(derivative, ProgramDerivative):
        return
    if examination.deadline.is_over:
        examination.not_compared.append(NotCompared(what="backward", count=1, reason=OUT_OF_TIME))
        return
    derivative.complete()
    stages = latest_backward(examination.program.stages_of("backward"))
    if len(stages) < 2 or not examination.has_room(derivative.body):
        examination.not_compared.append(NotCompared(what="backward", count=1, reason=NOT_COMPILED))
        return
    has_cotangent = stages[-1].given
    traces = without_freed([stage.trace for stage in stages])
    values = backward_inputs(derivative, has_cotangent, inputs, states, seed)
    taken = values.of(traces[0])
    assert taken is not None
    # Where the forward is wrong, so is what it saves, and what the backward makes of that.
    if not examination.faults:
        fault = unlike_autograd(derivative, traces[0], has_cotangent, values, inputs, states, examination.allowance)
        examination.stages.append(traces[0].made_by)
        examination.faults += [] if fault is None else [fault]
    examination.examine_stages(traces, taken, states)


def latest_backward(stages: Sequence[Stage]) -> list[Stage]:
    """The stages of the backward that was compiled last, from the one that was derived on."""
    starts = [place for place, stage in enumerate(stages) if stage.trace.made_by == DERIVED]
    return list(stages[starts[-1] :]) if starts else []


def backward_inputs(
    derivative: ProgramDerivative, has_cotangent: tuple[bool, ...], inputs: Values, states: RandomStates, seed: int
) -> BackwardInputs:
    """The values of the forward, and random cotangents of the results that gradients are given for."""
    forward = derivative.differentiated.forward
    plain = record(forward, inputs, states).final
    drew = not RandomStates.now(inputs).equal(states)  # the random numbers of another dtype are others
    names = [derivative.body.output[place].name for place in derivative.differentiated.results]
    chosen = [name for name, is_taken in zip(names, has_cotangent, strict=True) if is_taken]
    cotangents = random_cotangents(plain, chosen, seed)
    named = {f"grad_{name}": cotangent for name, cotangent in cotangents.items()}
    wide = {name: in_float64(cotangent) for name, cotangent in named.items()}

    @cache
    def exact() -> Values | None:
        recording = None if drew else recorded_in_double(forward, inputs, states)
        return None if recording is None else {**recording.final, **wide}

    return BackwardInputs({**plain, **named}, exact, cotangents)


def unlike_autograd(
    derivative: ProgramDerivative,
    backward: Trace,
    has_cotangent: tuple[bool, ...],
    values: BackwardInputs,
    inputs: Values,
    states: RandomStates,
    allowance: Allowance,
) -> Fault | None:
    """The fault of a backward whose gradients are not those of autograd."""
    body = derivative.body
    requires_grad_names = [body.inputs[place].name for place in derivative.differentiated.requires_grad_inputs]
    expected = autograd_gradients(body, inputs, requires_grad_names, values.cotangents, states)
    recorded, exact = evaluated(backward, values, states)
    found = wrong_gradient(backward, recorded, exact, expected, allowance)
    if found is None:
        return None
    plain = Evaluated(backward, recorded, exact)
    return unlike_derived(derivative, plain, has_cotangent, values, states, allowance) or gradient_fault(
        *found, derivative.differentiated.sweep.steps, backward, values.plain, expected
    )


def evaluated(
    backward: Trace, values: BackwardInputs, states: RandomStates
) -> tuple[RecordedValues, Callable[[], RecordedValues | None]]:
    """The recording of a backward in its own dtypes, and the function that gives the one in float64."""
    taken = values.of(backward)
    assert taken is not None

    @cache
    def exact() -> RecordedValues | None:
        wide = values.of(backward, in_double=True)
        return None if wide is None else recorded_in_double(backward, wide, states)

    return record(backward, taken, states), exact


def unlike_derived(
    derivative: ProgramDerivative,
    actual: Evaluated,
    has_cotangent: tuple[bool, ...],
    values: BackwardInputs,
    states: RandomStates,
    allowance: Allowance,
) -> Fault | None:
    """The fault at the first line where a backward differs from one that is derived anew; None if it differs nowhere.

    The names of a derivation are those of the sweeps that were made, in their order: that for all results comes first.
    """
    sweep = ReverseSweep.of(derivative.differentiated.sweep.trace)
    derived = sweep.backward([True] * len(has_cotangent))
    derived = derived if all(has_cotangent) else sweep.backward(has_cotangent)
    read = {proxy.name: proxy for bsym in derived.bound_symbols for proxy in bsym.inputs}
    made = {proxy.name for bsym in derived.bound_symbols for proxy in bsym.defines}
    if not all(name in values.plain for name in read.keys() - made):
        return None
    inputs = tuple(proxy for name, proxy in read.items() if name not in made)
    derived = replace(derived, inputs=inputs)
    with torch.no_grad():
        fault = first_difference(Evaluated(derived, *evaluated(derived, values, states)), actual, allowance)
    return None if fault is None else fault.model_copy(update={"kind": "differentiation"})
