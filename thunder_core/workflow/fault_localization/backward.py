"""The examination of a backward: its gradients beside autograd's, its stages, and its claimed lines."""

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
from thunder_core.passes.autodiff.reverse_mode import ReverseSweep
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
from thunder_core.workflow.fault_localization.recording import RecordedValues, record, recorded_in_double
from thunder_core.workflow.fault_localization.rounding import Allowance
from thunder_core.workflow.fault_localization.stages import Evaluated, first_difference
from thunder_core.workflow.fault_localization.time_limit import OUT_OF_TIME, time_limited
from thunder_core.workflow.fault_localization.trace_examination import Examination, without_freed
from thunder_core.workflow.validation.inside import Fault, NotCompared

NOT_COMPILED = "it was not compiled, or does not fit into memory"
IN_LOCKSTEP = 2  # times all values of the forward are held: by autograd, and as far as the backward reads them
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


@dataclass(frozen=True)
class Differentiation:
    """A backward as it was derived, on the inputs of one call: for the gradients of some results."""

    derivative: ProgramDerivative
    backward: Trace
    has_cotangent: tuple[bool, ...]
    inputs: Values
    states: RandomStates
    seed: int

    @property
    def requires_grad_names(self) -> list[str]:
        """The names of the inputs that gradients are computed of."""
        return [
            self.derivative.body.inputs[place].name for place in self.derivative.differentiated.requires_grad_inputs
        ]

    def values(self, *kept_for: Trace) -> BackwardInputs:
        """The values that backwards may read; where traces are given, those alone that they take are kept."""
        return backward_inputs(
            self.derivative, self.has_cotangent, self.inputs, self.states, self.seed, kept_for=kept_for
        )


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
    traces = without_freed([stage.trace for stage in stages])
    is_large = has_large_values(traces[0])
    if len(stages) < 2 or not examination.has_room(derivative.body, *([IN_LOCKSTEP] if is_large else [])):
        examination.not_compared.append(NotCompared(what="backward", count=1, reason=NOT_COMPILED))
        return
    differentiation = Differentiation(derivative, traces[0], stages[-1].given, inputs, states, seed)
    values = differentiation.values(*traces if is_large else ())
    # Where the forward is wrong, so is what it saves, and what the backward makes of that.
    if not examination.faults:
        with examination.noting("the gradients"):
            fault = unlike_autograd(differentiation, values, examination)
            examination.stages.append(traces[0].made_by)
            examination.faults += [] if fault is None else [fault]
    taken = values.of(traces[0])
    assert taken is not None
    examination.examine_stages(traces, taken, states)


def latest_backward(stages: Sequence[Stage]) -> list[Stage]:
    """The stages of the backward that was compiled last, from the one that was derived on."""
    starts = [place for place, stage in enumerate(stages) if stage.trace.made_by == DERIVED]
    return list(stages[starts[-1] :]) if starts else []


def backward_inputs(
    derivative: ProgramDerivative,
    has_cotangent: tuple[bool, ...],
    inputs: Values,
    states: RandomStates,
    seed: int,
    kept_for: Sequence[Trace] = (),
) -> BackwardInputs:
    """The values of the forward, and random cotangents of the results that gradients are given for.

    Where traces are given, the values that these take are kept alone.
    """
    forward = derivative.differentiated.forward
    names = [derivative.body.output[place].name for place in derivative.differentiated.results]
    chosen = [name for name, is_taken in zip(names, has_cotangent, strict=True) if is_taken]
    taken = {proxy.name for trace in kept_for for proxy in trace.inputs}
    kept = {*taken, *chosen} if kept_for else None
    plain = record(forward, inputs, states, kept=kept).final
    drew = not RandomStates.now(inputs).equal(states)  # the random numbers of another dtype are others
    cotangents = random_cotangents(plain, chosen, seed)
    named = {f"grad_{name}": cotangent for name, cotangent in cotangents.items()}
    wide = {name: in_float64(cotangent) for name, cotangent in named.items()}

    @cache
    def exact() -> Values | None:
        recording = None if drew else recorded_in_double(forward, inputs, states, kept=kept)
        return None if recording is None else {**recording.final, **wide}

    return BackwardInputs({**plain, **named}, exact, cotangents)


def unlike_autograd(one: Differentiation, values: BackwardInputs, examination: Examination) -> Fault | None:
    """The fault of a backward whose gradients are not those of autograd.

    Gradients that take much memory are not held all at once: where any is not the same bit for bit, some of these are
    compared at a time.
    """
    allowance = examination.allowance
    if not has_large_values(one.backward):
        return wrongly_differentiated(one, values, allowance)
    unlike = unlike_names(one, values)
    if unlike is None:
        return wrongly_differentiated(one, values, allowance) if examination.has_room(one.backward) else None
    parts = parts_of(one, unlike)
    if not any(found_gradient(one, values, allowance, names) for names in parts):
        return None
    with time_limited(None):
        return wrongly_differentiated(one, one.values(), allowance)


def unlike_names(one: Differentiation, values: BackwardInputs) -> list[str] | None:
    """The tensors whose gradients are not bit for bit autograd's; None where traces do not run line by line."""
    saved = values.of(one.backward)
    assert saved is not None
    names, cotangents = one.requires_grad_names, values.cotangents
    return names_unlike_autograd(one.derivative.body, one.backward, one.inputs, saved, names, cotangents, one.states)


def parts_of(one: Differentiation, names: Sequence[str]) -> Iterator[set[str]]:
    """The names of tensors in parts, each of which has gradients that may be held at once."""
    body = one.derivative.body
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


def found_gradient(
    one: Differentiation, values: BackwardInputs, allowance: Allowance, names: Container[str] | None = None
) -> tuple[str, Difference] | None:
    """The first wrong gradient of a backward, of these names or of all."""
    expected, recorded, exact = gradients_of_both(one, values, names)
    return wrong_gradient(one.backward, recorded, exact, expected, allowance)


def gradients_of_both(
    one: Differentiation, values: BackwardInputs, names: Container[str] | None = None
) -> tuple[AutogradGradients, RecordedValues, Callable[[], RecordedValues | None]]:
    """The gradients of autograd, and the evaluations of a backward in its own dtypes and in float64."""
    body, cotangents = one.derivative.body, values.cotangents
    expected = autograd_gradients(body, one.inputs, one.requires_grad_names, cotangents, one.states, names)
    return expected, *evaluated(one.backward, values, one.states, names)


def wrongly_differentiated(one: Differentiation, values: BackwardInputs, allowance: Allowance) -> Fault | None:
    """The fault of a backward whose gradients are not those of autograd, all of which are held."""
    expected, recorded, exact = gradients_of_both(one, values)
    found = wrong_gradient(one.backward, recorded, exact, expected, allowance)
    if found is None:
        return None
    with time_limited(None):
        plain, steps = Evaluated(one.backward, recorded, exact), one.derivative.differentiated.sweep.steps
        fault = unlike_derived(one.derivative, plain, one.has_cotangent, values, one.states, allowance)
        return fault or gradient_fault(*found, steps, one.backward, values.plain, expected)


def evaluated(
    backward: Trace, values: BackwardInputs, states: RandomStates, tensors: Container[str] | None = None
) -> tuple[RecordedValues, Callable[[], RecordedValues | None]]:
    """The recording of a backward in its own dtypes, and the function that gives the one in float64.

    Of some `tensors` of the forward the gradients alone are kept.
    """
    taken = values.of(backward)
    assert taken is not None
    kept = None if tensors is None else {one for name, one in backward.cotangents.items() if name in tensors}

    @cache
    def exact() -> RecordedValues | None:
        wide = values.of(backward, in_double=True)
        return None if wide is None else recorded_in_double(backward, wide, states, kept=kept)

    return record(backward, taken, states, kept=kept), exact


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
