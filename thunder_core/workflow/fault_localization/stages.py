"""Comparison of two stages: the values of all names after a transform with the values before it.

A transform keeps the names of values that it does not change. The first name whose value differs marks the faulty line,
or depends on new lines of the transform. Both stages are also evaluated in float64, where a different order of
operations changes far fewer digits than a mistake.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.backend.claiming.check import perturb
from thunder_core.backend.claiming.claim import EAGER
from thunder_core.backend.claiming.claim_checks import uninitialized_results
from thunder_core.backend.claiming.comparison import (
    Difference,
    Exact,
    differences,
    different_at,
    largest_difference,
    largest_value,
    metadata_difference,
)
from thunder_core.backend.claiming.deferred_tensor import DeferredTensor, has_same_values
from thunder_core.backend.claiming.double_precision import in_float64, result_in_double
from thunder_core.tracing.ir.printer import bound_symbol_text
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves
from thunder_core.workflow.fault_localization.line_faults import of_result, return_fault, stage_line_fault
from thunder_core.workflow.fault_localization.own_inputs import converted_inputs, own_inputs
from thunder_core.workflow.fault_localization.recording import AT_THE_END, RecordedValues
from thunder_core.workflow.fault_localization.rounding import ROUNDING, Allowance, rounding_difference
from thunder_core.workflow.validation.inside import Fault

RESULT = "result {}"  # the name of a returned value
# Bounds, with a large margin, for the effect of another order of operations in float64: relative to the largest value,
# to the error of the value in its own dtype (some values are only noise), and to the largest value that a line reads.
SAME_IN_DOUBLE = 1e-9
OF_OWN_ERROR = 2e-6
OF_INPUTS = 1e-13


@dataclass(frozen=True)
class Evaluated:
    """A stage and the recording of its evaluation. `exact` returns its recording in float64, or None.

    `perturbed` returns a recording of the first stage in float64 from inputs whose last digits are changed, or None.
    """

    trace: Trace
    recording: RecordedValues
    exact: Callable[[], RecordedValues | None] = lambda: None
    perturbed: Callable[[], RecordedValues | None] = lambda: None


def changes_dtypes(before: RecordedValues, after: RecordedValues) -> bool:
    """Whether a transform has changed dtypes of values, as autocast does; all differences are then rounding."""
    shared = before.values.keys() & after.values.keys()
    return any(dtype_of(before.values[name]) != dtype_of(after.values[name]) for name in shared)


def dtype_of(value: Any) -> torch.dtype | None:
    """Return the dtype of a tensor; None for other values."""
    return value.dtype if isinstance(value, torch.Tensor) else None


def first_difference(before: Evaluated, after: Evaluated, allowance: Allowance = ROUNDING) -> Fault | None:
    """Return the fault at the first name whose value differs between two stages; None if there is none."""
    names = [*after.recording.values, *(RESULT.format(place) for place in range(len(after.recording.outputs)))]
    before_values, after_values = named_values(before.recording), named_values(after.recording)
    made_by = {} if writes_of(after.trace) else definitions(after.trace)
    shared = [name for name in names if name in before_values and name in after_values]
    equal = {name for name in shared if is_equal(before_values[name], after_values[name])}
    if len(equal) == len(shared):
        return None
    in_double = differences_in_double(before, after) if allowance.is_strict else {}
    without_values = {name for bsym in after.trace.bound_symbols for name in uninitialized_results(bsym, (bsym,))}
    for name in shared:
        if name in without_values or (name in equal and name not in in_double):
            continue
        exact = exact_value(name, before)
        if name in made_by and reads_the_same(made_by[name], before.recording, after.recording):
            exact = exact_locally(name, before)
        difference = in_double.get(name) or value_fault(before_values[name], after_values[name], exact, allowance)
        if difference is not None:
            return stage_fault(name, difference, before.trace, after.trace)
    return None


def named_values(recording: RecordedValues) -> dict[str, Any]:
    """Return the values of a recording by name, and the returned values by their positions."""
    returned = {RESULT.format(place): value for place, value in enumerate(recording.outputs)}
    return {**recording.values, **returned}


def value_fault(old: Any, new: Any, exact: Exact, allowance: Allowance) -> Difference | None:
    """Return the difference of a value after a transform if it is more than rounding; else None."""
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return metadata_difference(new, old)
    if old.dtype != new.dtype or old.shape != new.shape:
        return metadata_difference(new, old)
    if old.layout is not torch.strided or torch.equal(old, new):
        return None
    return rounding_difference(new, old, exact, allowance).difference


def exact_value(name: str, before: Evaluated) -> Exact:
    """Return the function that returns a value of the first stage in float64."""

    def exact(perturbed: bool = False) -> torch.Tensor | None:
        recording = before.perturbed() if perturbed else before.exact()
        value = None if recording is None else named_values(recording).get(name)
        return value if isinstance(value, torch.Tensor) else None

    return exact


def differences_in_double(before: Evaluated, after: Evaluated) -> dict[str, Difference]:
    """Return the differences of values in float64, by name."""
    before_exact, after_exact = before.exact(), after.exact()
    if before_exact is None or after_exact is None:
        return {}
    old, new = named_values(before_exact), named_values(after_exact)
    own, made_by = named_values(before.recording), definitions(after.trace)
    differences_by_name: dict[str, Difference | None] = {}
    for name in new:
        bsym = made_by.get(name)
        if name not in old or name not in own or has_same_values(old[name], new[name]):
            continue
        if bsym is None or bsym.executor in ("", EAGER):
            noise = noise_in_double(own[name], old[name]) + noise_of_inputs(bsym, after_exact)
            differences_by_name[name] = difference_in_double(old[name], new[name], noise)
    return {name: difference for name, difference in differences_by_name.items() if difference is not None}


def noise_in_double(own: Any, exact: Any) -> float:
    """Return the error in float64 that the error of a value in its own dtype makes plausible."""
    if not all(isinstance(value, torch.Tensor) and value.layout is torch.strided for value in (own, exact)):
        return 0.0
    if own.shape != exact.shape or not own.is_floating_point() or not own.numel():
        return 0.0
    error = largest_difference(own, exact)
    return OF_OWN_ERROR * error if math.isfinite(error) else 0.0


def noise_of_inputs(bsym: BoundSymbol | None, exact: RecordedValues) -> float:
    """Return the error in float64 that the magnitude of a line's inputs makes plausible."""
    values = () if bsym is None else (exact.final.get(proxy.name) for proxy in bsym.inputs)
    values = (value.source if isinstance(value, DeferredTensor) else value for value in values)
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()]
    return OF_INPUTS * max((largest_value(tensor) for tensor in tensors if tensor.numel()), default=0.0)


def difference_in_double(old: Any, new: Any, noise: float = 0.0) -> Difference | None:
    """Return the difference of a floating value in float64, unless another order of operations explains it."""
    dense = all(isinstance(value, torch.Tensor) and value.layout is torch.strided for value in (old, new))
    if not dense or old.shape != new.shape or old.dtype != new.dtype or torch.equal(old, new):
        return None
    if not (old.is_floating_point() or old.is_complex()):
        return None  # integers are compared in their own dtypes, by the number of differences
    largest = largest_difference(new, old)
    return different_at(new, old, largest) if largest > SAME_IN_DOUBLE * largest_value(old) + noise else None


def reads_the_same(bsym: BoundSymbol, before: RecordedValues, after: RecordedValues) -> bool:
    """Whether all inputs of a line have the same bits as before, so that only the line is compared."""
    names = [proxy.name for proxy in bsym.inputs]
    return all(name in before.final and is_equal(before.final[name], after.final[name]) for name in names)


def is_equal(before: Any, after: Any) -> bool:
    """Whether two values are the same; NaN equals NaN."""
    if has_same_values(before, after):
        return True
    tensors = [value for value in (before, after) if isinstance(value, torch.Tensor)]
    if len(tensors) < 2:
        return not tensors and bool(before == after)
    kinds = [(value.shape, value.dtype, value.layout, value.device) for value in tensors]
    if kinds[0] != kinds[1]:
        return False
    return torch.equal(before, after) or not differences(before, after).any()


def exact_locally(name: str, before: Evaluated) -> Exact:
    """Return the function that computes one line of the earlier stage in float64, from the line's inputs."""
    bsym = definitions(before.trace).get(name)

    def exact(perturbed: bool = False) -> torch.Tensor | None:
        if bsym is None or before.exact() is None:
            return None
        change = perturb if perturbed else in_float64
        read = {proxy.name: before.recording.final[proxy.name] for proxy in bsym.inputs}
        line = before.trace.having((bsym,), made_by=before.trace.made_by)
        values = converted_inputs(own_inputs(read, line), change, line)
        return result_in_double(bsym, name, values)

    return exact


def stage_fault(name: str, difference: Difference, before: Trace, after: Trace) -> Fault:
    """Return the fault at a name, with the line that defines it or the first new line that it depends on."""
    bsym, phrase = culprit(name, before, after), of_result(name, difference)
    if bsym is None:
        return return_fault("transform", after, name, phrase)
    return stage_line_fault(after, bsym, name, phrase)


def culprit(name: str, before: Trace, after: Trace) -> BoundSymbol | None:
    """Return the bound symbol that causes a wrong value of the later stage; None if only the returned values differ."""
    made_by = definitions(after)
    if name.startswith("result "):
        place = int(name.removeprefix("result "))
        olds, news = list(leaves(before.output)), list(leaves(after.output))
        if place >= min(len(olds), len(news)):
            return None  # a result of the tail, not of the trace
        old, new = olds[place], news[place]
        if getattr(old, "name", None) != getattr(new, "name", None) and getattr(new, "name", "") in definitions(before):
            return None
        name = getattr(new, "name", "")
    if name.endswith(AT_THE_END):
        written = name.removesuffix(AT_THE_END)
        return lost_write(before, after) or next((bsym for bsym in writes_of(after) if written in bsym.mutates), None)
    written, _, count = name.partition(" after ")
    if count:
        writes = [bsym for bsym in after.bound_symbols if written in bsym.mutates]
        return writes[min(int(count.split()[0]), len(writes)) - 1] if writes else None
    bsym = made_by.get(name)
    if bsym is None:
        return None
    old = definitions(before).get(name)
    if old is None or bound_symbol_text(old) != bound_symbol_text(bsym):
        return first_new_ancestor(bsym, before, made_by) if old is not None and same_but_inputs(old, bsym) else bsym
    return lost_write(before, after) or bsym


def definitions(trace: Trace) -> dict[str, BoundSymbol]:
    """Return the bound symbol that defines each name."""
    return {proxy.name: bsym for bsym in trace.bound_symbols for proxy in bsym.defines}


def same_but_inputs(old: BoundSymbol, new: BoundSymbol) -> bool:
    """Whether two bound symbols are equal except for the names of their inputs."""
    if old.symbol.name != new.symbol.name or len(old.inputs) != len(new.inputs):
        return False
    names = dict(zip((proxy.name for proxy in old.inputs), new.inputs, strict=True))
    return bound_symbol_text(old.rename(names)) == bound_symbol_text(new)


def first_new_ancestor(bsym: BoundSymbol, before: Trace, made_by: Mapping[str, BoundSymbol]) -> BoundSymbol:
    """Return the first bound symbol that a result depends on and that only the later stage has, or the result's own."""
    earlier, order = definitions(before), {id(maker): place for place, maker in enumerate(made_by.values())}
    ancestors, pending = {id(bsym): bsym}, [bsym]
    while pending:
        for proxy in pending.pop().inputs:
            maker = made_by.get(proxy.name)
            if maker is not None and proxy.name not in earlier and id(maker) not in ancestors:
                ancestors[id(maker)] = maker
                pending.append(maker)
    return min(ancestors.values(), key=lambda ancestor: order.get(id(ancestor), len(order)))


def lost_write(before: Trace, after: Trace) -> BoundSymbol | None:
    """Return the first write of the earlier stage that the later stage does not have; None if there is none."""
    texts = {bound_symbol_text(bsym) for bsym in after.bound_symbols if bsym.has_effect}
    return next((bsym for bsym in writes_of(before) if bound_symbol_text(bsym) not in texts), None)


def writes_of(trace: Trace) -> list[BoundSymbol]:
    """Return the bound symbols that write to tensors."""
    return [bsym for bsym in trace.bound_symbols if bsym.mutates]
