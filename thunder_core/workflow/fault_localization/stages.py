"""Stages beside each other: the values of all names behind a transform, and those before it.

A transform keeps the names of the values that it does not change. The first name whose value differs behind it marks
the faulty line, or follows from lines with names of the transform's own. Both stages are evaluated in float64, too,
where what is computed in another order agrees to many more digits than a mistake does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.backend.claiming.check import perturb
from thunder_core.backend.claiming.claim import EAGER
from thunder_core.backend.claiming.claim_checks import uninitialized
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

RESULT = "result {}"  # names what a trace returns at a place
# What another order of operations changes in float64, and much more: of the largest value, of the error that the value
# has in its own dtype (so that noise about a zero is not told from noise), and of the largest value that a line reads.
SAME_IN_DOUBLE = 1e-9
OF_OWN_ERROR = 2e-6
OF_INPUTS = 1e-13


@dataclass(frozen=True)
class Evaluated:
    """A stage and the recording of its evaluation; `exact` gives one in float64 where its operations take that.

    `perturbed` gives another one in float64, of the first stage, from inputs whose last digits are others.
    """

    trace: Trace
    recording: RecordedValues
    exact: Callable[[], RecordedValues | None] = lambda: None
    perturbed: Callable[[], RecordedValues | None] = lambda: None


def changes_dtypes(before: RecordedValues, after: RecordedValues) -> bool:
    """Whether a transform has given values other dtypes, as autocast does: rounding then explains all differences."""
    shared = before.values.keys() & after.values.keys()
    return any(dtype_of(before.values[name]) != dtype_of(after.values[name]) for name in shared)


def dtype_of(value: Any) -> torch.dtype | None:
    """The dtype of a tensor; None for other values."""
    return value.dtype if isinstance(value, torch.Tensor) else None


def first_difference(before: Evaluated, after: Evaluated, allowance: Allowance = ROUNDING) -> Fault | None:
    """The fault at the first name whose value differs between two stages; None if there is none."""
    names = [*after.recording.values, *(RESULT.format(place) for place in range(len(after.recording.outputs)))]
    old, new = named_values(before.recording), named_values(after.recording)
    made_by = {} if writes_of(after.trace) else definitions(after.trace)
    shared = [name for name in names if name in old and name in new]
    equal = {name for name in shared if is_equal(old[name], new[name])}
    if len(equal) == len(shared):
        return None
    in_double = differences_in_double(before, after) if allowance.is_strict else {}
    without_values = {name for bsym in after.trace.bound_symbols for name in uninitialized(bsym, (bsym,))}
    for name in shared:
        if name in without_values or (name in equal and name not in in_double):
            continue
        exact = exact_value(name, before)
        if name in made_by and reads_the_same(made_by[name], before.recording, after.recording):
            exact = exact_locally(name, before)
        difference = in_double.get(name) or value_fault(old[name], new[name], exact, allowance)
        if difference is not None:
            return stage_fault(name, difference, before.trace, after.trace)
    return None


def named_values(recording: RecordedValues) -> dict[str, Any]:
    """The values of a recording by names, and those that are returned by their places."""
    returned = {RESULT.format(place): value for place, value in enumerate(recording.outputs)}
    return {**recording.values, **returned}


def value_fault(old: Any, new: Any, exact: Exact, allowance: Allowance) -> Difference | None:
    """The difference of a value behind a transform, if it is more than rounding."""
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return metadata_difference(new, old)
    if old.dtype != new.dtype or old.shape != new.shape:
        return metadata_difference(new, old)
    if old.layout is not torch.strided or torch.equal(old, new):
        return None
    return rounding_difference(new, old, exact, allowance).difference


def exact_value(name: str, before: Evaluated) -> Exact:
    """The function that gives a value of the first stage in float64."""

    def exact(perturbed: bool = False) -> torch.Tensor | None:
        recording = before.perturbed() if perturbed else before.exact()
        value = None if recording is None else named_values(recording).get(name)
        return value if isinstance(value, torch.Tensor) else None

    return exact


def differences_in_double(before: Evaluated, after: Evaluated) -> dict[str, Difference]:
    """The differences of values in float64, by names."""
    before_exact, after_exact = before.exact(), after.exact()
    if before_exact is None or after_exact is None:
        return {}
    old, new = named_values(before_exact), named_values(after_exact)
    own, made_by = named_values(before.recording), definitions(after.trace)
    found: dict[str, Difference | None] = {}
    for name in new:
        bsym = made_by.get(name)
        if name not in old or name not in own or has_same_values(old[name], new[name]):
            continue
        if bsym is None or bsym.executor in ("", EAGER):
            noise = noise_in_double(own[name], old[name]) + noise_of_inputs(bsym, after_exact)
            found[name] = difference_in_double(old[name], new[name], noise)
    return {name: difference for name, difference in found.items() if difference is not None}


def noise_in_double(own: Any, exact: Any) -> float:
    """The error in float64 that the error of a value in its own dtype makes plausible."""
    if not all(isinstance(one, torch.Tensor) and one.layout is torch.strided for one in (own, exact)):
        return 0.0
    if own.shape != exact.shape or not own.is_floating_point() or not own.numel():
        return 0.0
    error = largest_difference(own, exact)
    return OF_OWN_ERROR * error if math.isfinite(error) else 0.0


def noise_of_inputs(bsym: BoundSymbol | None, exact: RecordedValues) -> float:
    """The error in float64 that values of the size of what a line reads make plausible."""
    values = () if bsym is None else (exact.final.get(proxy.name) for proxy in bsym.inputs)
    values = (value.source if isinstance(value, DeferredTensor) else value for value in values)
    tensors = [one for one in values if isinstance(one, torch.Tensor) and one.is_floating_point() and one.numel()]
    return OF_INPUTS * max(map(largest_value, tensors), default=0.0)


def difference_in_double(old: Any, new: Any, noise: float = 0.0) -> Difference | None:
    """The difference of a floating-point value in float64, if another order of operations does not explain it."""
    dense = all(isinstance(one, torch.Tensor) and one.layout is torch.strided for one in (old, new))
    if not dense or old.shape != new.shape or old.dtype != new.dtype or torch.equal(old, new):
        return None
    if not (old.is_floating_point() or old.is_complex()):
        return None  # how many are others counts, which the values in their own dtypes tell
    largest = largest_difference(new, old)
    return different_at(new, old, largest) if largest > SAME_IN_DOUBLE * largest_value(old) + noise else None


def reads_the_same(bsym: BoundSymbol, before: RecordedValues, after: RecordedValues) -> bool:
    """Whether all that a line reads has the same bits as before, so that the line alone is to be compared."""
    names = [proxy.name for proxy in bsym.inputs]
    return all(name in before.final and is_equal(before.final[name], after.final[name]) for name in names)


def is_equal(one: Any, other: Any) -> bool:
    """Whether two values are the same, NaN included."""
    if has_same_values(one, other):
        return True
    tensors = [value for value in (one, other) if isinstance(value, torch.Tensor)]
    if len(tensors) < 2:
        return not tensors and bool(one == other)
    kinds = [(value.shape, value.dtype, value.layout, value.device) for value in tensors]
    if kinds[0] != kinds[1]:
        return False
    return torch.equal(one, other) or not differences(one, other).any()


def exact_locally(name: str, before: Evaluated) -> Exact:
    """The function that computes one line of the earlier stage in float64, from what it has read."""
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
    """The fault at a name: at the line that defines it, or at the first line that it is computed from and is new."""
    bsym, told = culprit(name, before, after), of_result(name, difference)
    return return_fault("transform", after, name, told) if bsym is None else stage_line_fault(after, bsym, name, told)


def culprit(name: str, before: Trace, after: Trace) -> BoundSymbol | None:
    """The bound symbol to blame for a value of the later stage; None where only what is returned is to blame."""
    made_by = definitions(after)
    if name.startswith("result "):
        place = int(name.removeprefix("result "))
        olds, news = list(leaves(before.output)), list(leaves(after.output))
        if place >= min(len(olds), len(news)):
            return None  # the results of a tail, which are not those of the trace
        old, new = olds[place], news[place]
        if getattr(old, "name", None) != getattr(new, "name", None) and getattr(new, "name", "") in definitions(before):
            return None
        name = getattr(new, "name", "")
    if name.endswith(AT_THE_END):
        written = name.removesuffix(AT_THE_END)
        return lost_write(before, after) or next((one for one in writes_of(after) if written in one.mutates), None)
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
    """The bound symbol that defines each name."""
    return {proxy.name: bsym for bsym in trace.bound_symbols for proxy in bsym.defines}


def same_but_inputs(old: BoundSymbol, new: BoundSymbol) -> bool:
    """Whether two bound symbols call one thing, and differ in the names that they read at the most."""
    if old.symbol.name != new.symbol.name or len(old.inputs) != len(new.inputs):
        return False
    names = dict(zip((proxy.name for proxy in old.inputs), new.inputs, strict=True))
    return bound_symbol_text(old.renamed(names)) == bound_symbol_text(new)


def first_new_ancestor(bsym: BoundSymbol, before: Trace, made_by: Mapping[str, BoundSymbol]) -> BoundSymbol:
    """The first bound symbol, in order, among those behind a result that only the later stage has, or itself."""
    earlier, order = definitions(before), {id(one): place for place, one in enumerate(made_by.values())}
    ancestors, pending = {id(bsym): bsym}, [bsym]
    while pending:
        for proxy in pending.pop().inputs:
            maker = made_by.get(proxy.name)
            if maker is not None and proxy.name not in earlier and id(maker) not in ancestors:
                ancestors[id(maker)] = maker
                pending.append(maker)
    return min(ancestors.values(), key=lambda one: order.get(id(one), len(order)))


def lost_write(before: Trace, after: Trace) -> BoundSymbol | None:
    """The first write of the earlier stage that the later one does not have."""
    kept = {bound_symbol_text(bsym) for bsym in after.bound_symbols if bsym.has_effect}
    return next((one for one in writes_of(before) if bound_symbol_text(one) not in kept), None)


def writes_of(trace: Trace) -> list[BoundSymbol]:
    """The bound symbols that write to tensors."""
    return [bsym for bsym in trace.bound_symbols if bsym.mutates]
