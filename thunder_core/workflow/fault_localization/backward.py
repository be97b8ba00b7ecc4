"""The check of a backward: its gradients, the stages of its trace, and its claimed lines."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.claiming.comparison import Difference
from thunder_core.backend.claiming.copies import Values
from thunder_core.backend.claiming.double_precision import in_float64
from thunder_core.backend.runtime.program import Stage
from thunder_core.passes.autodiff.program_derivative import ProgramDerivative
from thunder_core.passes.autodiff.reverse_sweep import ReverseSweep
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.backward_lockstep import names_unlike_autograd
from thunder_core.workflow.fault_localization.derivatives import (
    AutogradGradients,
    Cotangents,
    autograd_gradients,
    gradient_fault,
    random_cotangents,
    wrong_gradient,
)
from thunder_core.workflow.fault_localization.lockstep import LARGE_VALUES, has_large_values
from thunder_core.workflow.fault_localization.recording import RecordedValues, record, record_in_double
from thunder_core.workflow.fault_localization.rounding import Allowance
from thunder_core.workflow.fault_localization.stages import EvaluatedStage, first_difference
from thunder_core.workflow.fault_localization.time_limit import OUT_OF_TIME, limit_time
from thunder_core.workflow.fault_localization.trace_examination import Examination, without_freeing
from thunder_core.workflow.validation.internal_check import Fault, NotCompared

NOT_COMPILED = "it was not compiled, or does not fit into memory"
COPIES_IN_LOCKSTEP = 2  # copies of the forward's values: for autograd, and for the backward
DIFFERENTIATE = "differentiate"  # the transform that makes the first stage of a backward


@dataclass(frozen=True)
class BackwardInputs:
    """The values that a backward may read: the forward's values, and the cotangents.

    `in_double()` returns the values in float64, or None if float64 is not possible.
    """

    plain: Values
    in_double: Callable[[], Values | None]
    cotangents: Cotangents

    def of(self, trace: Trace, *, in_double: bool = False) -> Values | None:
        """Return the inputs of a backward by name; None if `in_double` is set and float64 is not possible."""
        values = self.in_double() if in_double else self.plain
        return None if values is None else {proxy.name: values[proxy.name] for proxy in trace.inputs}


@dataclass(frozen=True)
class Differentiation:
    """A derived backward with the inputs of one call; `has_cotangent` marks the results that have cotangents."""

    derivative: ProgramDerivative
    backward: Trace
    has_cotangent: tuple[bool, ...]
    inputs: Values
    states: RandomStates
    seed: int

    @property
    def requires_grad_names(self) -> list[str]:
        """The names of the inputs whose gradients are computed."""
        return [
            self.derivative.body.inputs[index].name for index in self.derivative.differentiated.requires_grad_inputs
        ]

    def values(self, *kept_for: Trace) -> BackwardInputs:
        """Return the values that backwards may read; if traces are passed, only the inputs of these traces are kept."""
        return backward_inputs(
            self.derivative, self.has_cotangent, self.inputs, self.states, self.seed, kept_for=kept_for
        )


def examine_backward(examination: Examination, inputs: Values, states: RandomStates, seed: int) -> None:
    """Compare the backward with autograd, its stages with each other, and its claimed lines with eager PyTorch.

    The last compiled backward is checked, or the backward for all results if none was compiled.
    The cotangents are random numbers from a seed.
    """
    derivative = examination.program.derivative
    if not isinstance(derivative, ProgramDerivative):
        return
    if examination.deadline.is_over:
        examination.not_compared.append(NotCompared(what="backward", count=1, reason=OUT_OF_TIME))
        return
    derivative.complete()
    stages = latest_backward(examination.program.stages_of("backward"))
    traces = without_freeing([stage.trace for stage in stages])
    is_large = has_large_values(traces[0])
    if len(stages) < 2 or not examination.has_room(derivative.body, *([COPIES_IN_LOCKSTEP] if is_large else [])):
        examination.not_compared.append(NotCompared(what="backward", count=1, reason=NOT_COMPILED))
        return
    differentiation = Differentiation(derivative, traces[0], stages[-1].has_cotangent, inputs, states, seed)
    values = differentiation.values(*traces if is_large else ())
    # If the forward is wrong, the saved values are wrong too, and so are the gradients.
    if not examination.faults:
        with examination.note_errors("the gradients"):
            fault = find_wrong_gradient(differentiation, values, examination)
            examination.stages.append(traces[0].made_by)
            examination.faults += [] if fault is None else [fault]
    backward_values = values.of(traces[0])
    assert backward_values is not None
    examination.examine_stages(traces, backward_values, states)


def latest_backward(stages: Sequence[Stage]) -> list[Stage]:
    """Return the stages of the backward that was compiled last, beginning with the derived stage."""
    starts = [index for index, stage in enumerate(stages) if stage.trace.made_by == DIFFERENTIATE]
    return list(stages[starts[-1] :]) if starts else []


def backward_inputs(
    derivative: ProgramDerivative,
    has_cotangent: tuple[bool, ...],
    inputs: Values,
    states: RandomStates,
    seed: int,
    kept_for: Sequence[Trace] = (),
) -> BackwardInputs:
    """Return the forward's values, and random cotangents of the results that `has_cotangent` marks.

    If traces are passed, only the inputs of these traces are kept.
    """
    forward = derivative.differentiated.forward
    names = [derivative.body.output[index].name for index in derivative.differentiated.results]
    chosen = [name for name, is_taken in zip(names, has_cotangent, strict=True) if is_taken]
    input_names = {proxy.name for trace in kept_for for proxy in trace.inputs}
    names_to_keep = {*input_names, *chosen} if kept_for else None
    plain = record(forward, inputs, states, names_to_keep=names_to_keep).final
    drew = not RandomStates.now(inputs).equal(states)  # float64 would give other random numbers
    cotangents = random_cotangents(plain, chosen, seed)
    named = {f"grad_{name}": cotangent for name, cotangent in cotangents.items()}
    wide = {name: in_float64(cotangent) for name, cotangent in named.items()}

    @cache
    def values_in_double() -> Values | None:
        recording = None if drew else record_in_double(forward, inputs, states, names_to_keep=names_to_keep)
        return None if recording is None else {**recording.final, **wide}

    return BackwardInputs({**plain, **named}, values_in_double, cotangents)


def find_wrong_gradient(
    differentiation: Differentiation, values: BackwardInputs, examination: Examination
) -> Fault | None:
    """Compare a backward's gradients with autograd's; return the fault if they differ, else None.

    To save memory, gradients are first compared bit by bit, one at a time. If some differ, these are compared in parts.
    """
    allowance = examination.allowance
    if not has_large_values(differentiation.backward):
        return wrong_gradient_fault(differentiation, values, allowance)
    unlike = names_of_unequal_gradients(differentiation, values)
    if unlike is None:
        has_room = examination.has_room(differentiation.backward)
        return wrong_gradient_fault(differentiation, values, allowance) if has_room else None
    parts = parts_of(differentiation, unlike)
    if not any(first_wrong_gradient(differentiation, values, allowance, names) for names in parts):
        return None
    with limit_time(None):
        return wrong_gradient_fault(differentiation, differentiation.values(), allowance)


def names_of_unequal_gradients(differentiation: Differentiation, values: BackwardInputs) -> list[str] | None:
    """Return the tensors whose gradients differ in any bit from autograd's; None if traces cannot run in lockstep."""
    saved = values.of(differentiation.backward)
    assert saved is not None
    names, cotangents = differentiation.requires_grad_names, values.cotangents
    return names_unlike_autograd(
        differentiation.derivative.body,
        differentiation.backward,
        differentiation.inputs,
        saved,
        names,
        cotangents,
        differentiation.states,
    )


def parts_of(differentiation: Differentiation, names: Sequence[str]) -> Iterator[set[str]]:
    """Yield the names of tensors in parts; the gradients of each part may be in memory at once."""
    body = differentiation.derivative.body
    tensors = (*body.inputs, *(proxy for bsym in body.bound_symbols for proxy in bsym.tensors))
    sizes = {proxy.name: proxy.bytes for proxy in tensors if isinstance(proxy, TensorProxy)}
    part, size = set[str](), 0
    for name in names:
        if part and size + sizes[name] > LARGE_VALUES:
            yield part
            part, size = set(), 0
        part.add(name)
        size += sizes[name]
    if part:
        yield part


def first_wrong_gradient(
    differentiation: Differentiation, values: BackwardInputs, allowance: Allowance, names: Container[str] | None = None
) -> tuple[str, Difference] | None:
    """Return the first wrong gradient of a backward, among `names` or all gradients; None if all are right."""
    expected, recorded, record_backward = gradients_of_both(differentiation, values, names)
    return wrong_gradient(differentiation.backward, recorded, record_backward, expected, allowance)


def gradients_of_both(
    differentiation: Differentiation, values: BackwardInputs, names: Container[str] | None = None
) -> tuple[AutogradGradients, RecordedValues, Callable[[], RecordedValues | None]]:
    """Return autograd's gradients, the recording of a backward, and a function that records the backward in float64."""
    body, cotangents = differentiation.derivative.body, values.cotangents
    expected = autograd_gradients(
        body, differentiation.inputs, differentiation.requires_grad_names, cotangents, differentiation.states, names
    )
    return expected, *evaluate_backward(differentiation.backward, values, differentiation.states, names)


def wrong_gradient_fault(
    differentiation: Differentiation, values: BackwardInputs, allowance: Allowance
) -> Fault | None:
    """Return the fault of a backward whose gradients differ from autograd's, with all gradients in memory; or None."""
    expected, recorded, record_backward = gradients_of_both(differentiation, values)
    gradient = wrong_gradient(differentiation.backward, recorded, record_backward, expected, allowance)
    if gradient is None:
        return None
    with limit_time(None):
        plain, steps = (
            EvaluatedStage(differentiation.backward, recorded, record_backward),
            differentiation.derivative.differentiated.sweep.steps,
        )
        fault = difference_from_derivation(
            differentiation.derivative, plain, differentiation.has_cotangent, values, differentiation.states, allowance
        )
        return fault or gradient_fault(*gradient, steps, differentiation.backward, values.plain, expected)


def evaluate_backward(
    backward: Trace, values: BackwardInputs, states: RandomStates, tensors: Container[str] | None = None
) -> tuple[RecordedValues, Callable[[], RecordedValues | None]]:
    """Return the recording of a backward in its own dtypes, and a function that records the backward in float64.

    If `tensors` of the forward are passed, only their gradients are kept.
    """
    inputs = values.of(backward)
    assert inputs is not None
    cotangents = backward.cotangents.items()
    chosen_cotangents = None if tensors is None else {cotangent for name, cotangent in cotangents if name in tensors}

    @cache
    def record_backward() -> RecordedValues | None:
        wide = values.of(backward, in_double=True)
        return None if wide is None else record_in_double(backward, wide, states, names_to_keep=chosen_cotangents)

    return record(backward, inputs, states, names_to_keep=chosen_cotangents), record_backward


def difference_from_derivation(
    derivative: ProgramDerivative,
    actual: EvaluatedStage,
    has_cotangent: tuple[bool, ...],
    values: BackwardInputs,
    states: RandomStates,
    allowance: Allowance,
) -> Fault | None:
    """Return the fault at the first line where a backward differs from a newly derived backward; None if both agree.

    The names in a derivation depend on the order of the backward sweeps, so the sweep for all results comes first.
    """
    sweep = ReverseSweep.of(derivative.differentiated.sweep.trace)
    derived = sweep.backward([True] * len(has_cotangent))
    derived = derived if all(has_cotangent) else sweep.backward(has_cotangent)
    read = {proxy.name: proxy for bsym in derived.bound_symbols for proxy in bsym.inputs}
    defined = {proxy.name for bsym in derived.bound_symbols for proxy in bsym.defines}
    if not all(name in values.plain for name in read.keys() - defined):
        return None
    inputs = tuple(proxy for name, proxy in read.items() if name not in defined)
    derived = replace(derived, inputs=inputs)
    with torch.no_grad():
        fault = first_difference(
            EvaluatedStage(derived, *evaluate_backward(derived, values, states)), actual, allowance
        )
    return None if fault is None else fault.model_copy(update={"kind": "differentiation"})
