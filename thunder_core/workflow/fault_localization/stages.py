"""Compare two stages of a trace: the value of each name before and after a transform.

A transform keeps the names of values that it does not change. The fault is at the line that defines the first name
whose value differs, with two exceptions. If the transform only renamed the inputs of that line, the fault is at the
first new line that these inputs depend on. If the line is unchanged, the fault is a write that the transform has
removed. Both stages are also evaluated in float64, where another order of operations changes far fewer digits than a
mistake.
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
    Float64Computation,
    describe_difference,
    differences,
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
from thunder_core.workflow.fault_localization.input_copies import convert_inputs, copy_inputs
from thunder_core.workflow.fault_localization.line_faults import phrase_of_result, return_fault, stage_line_fault
from thunder_core.workflow.fault_localization.recording import AFTER_WRITE, AT_END_SUFFIX, RecordedValues
from thunder_core.workflow.fault_localization.rounding import ROUNDING, Allowance, rounding_difference
from thunder_core.workflow.validation.internal_check import Fault

RESULT = "result "  # the name of a returned value is this prefix with the value's position
# Bounds, with a large margin, for the difference in float64 that another order of operations causes.
SAME_IN_DOUBLE = 1e-9  # times the largest value of the tensor
OF_OWN_ERROR = 2e-6  # times the error of the value in its own dtype
OF_INPUTS = 1e-13  # times the largest value of the line's inputs


@dataclass(frozen=True)
class EvaluatedStage:
    """A stage and the recording of its evaluation in its own dtypes.

    `record_in_double()` returns the stage's recording in float64, or None if float64 is not possible.
    `record_perturbed()` returns the first stage's recording in float64, from inputs whose elements are changed by one
    unit in the last place; None if float64 is not possible.
    """

    trace: Trace
    recording: RecordedValues
    record_in_double: Callable[[], RecordedValues | None] = lambda: None
    record_perturbed: Callable[[], RecordedValues | None] = lambda: None


def changes_dtypes(before: RecordedValues, after: RecordedValues) -> bool:
    """Whether a transform has changed dtypes of values, as autocast does. Such stages are not compared."""
    shared = before.values.keys() & after.values.keys()
    return any(dtype_of(before.values[name]) != dtype_of(after.values[name]) for name in shared)


def dtype_of(value: object) -> torch.dtype | None:
    """Return the dtype of a tensor; None for other values."""
    return value.dtype if isinstance(value, torch.Tensor) else None


def first_difference(before: EvaluatedStage, after: EvaluatedStage, allowance: Allowance = ROUNDING) -> Fault | None:
    """Return the fault at the first name whose value differs between two stages; None if there is none."""
    names = [*after.recording.values, *(f"{RESULT}{index}" for index in range(len(after.recording.outputs)))]
    before_values, after_values = named_values(before.recording), named_values(after.recording)
    # After writes, the final values of a line's inputs may not be the values that the line read.
    line_of = {} if writes_of(after.trace) else definitions(after.trace)
    shared = [name for name in names if name in before_values and name in after_values]
    equal = {name for name in shared if is_equal(before_values[name], after_values[name])}
    if len(equal) == len(shared):
        return None
    in_double = differences_in_double(before, after) if allowance.is_strict else {}
    uninitialized = {name for bsym in after.trace.bound_symbols for name in uninitialized_results(bsym, (bsym,))}
    for name in shared:
        if name in uninitialized or (name in equal and name not in in_double):
            continue
        reference = reference_of(name, before)
        if name in line_of and reads_equal_values(line_of[name], before.recording, after.recording):
            reference = local_reference_of(name, before)
        difference = in_double.get(name) or value_fault(before_values[name], after_values[name], reference, allowance)
        if difference is not None:
            return stage_fault(name, difference, before.trace, after.trace)
    return None


def named_values(recording: RecordedValues) -> dict[str, Any]:
    """Return the values of a recording by name, and the returned values under names such as `result 0`."""
    returned = {f"{RESULT}{index}": value for index, value in enumerate(recording.outputs)}
    return {**recording.values, **returned}


def value_fault(old: object, new: object, reference: Float64Computation, allowance: Allowance) -> Difference | None:
    """Return the difference of a value after a transform if it is more than rounding; else None."""
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return metadata_difference(new, old)
    if old.dtype != new.dtype or old.shape != new.shape:
        return metadata_difference(new, old)
    if old.layout is not torch.strided or torch.equal(old, new):
        return None
    return rounding_difference(new, old, reference, allowance).difference


def reference_of(name: str, before: EvaluatedStage) -> Float64Computation:
    """Return a function that returns the value of a name in the stage before the transform, in float64.

    With `perturbed`, the function returns the value of the first stage from perturbed inputs.
    """

    def reference(perturbed: bool = False) -> torch.Tensor | None:
        recording = before.record_perturbed() if perturbed else before.record_in_double()
        value = None if recording is None else named_values(recording).get(name)
        return value if isinstance(value, torch.Tensor) else None

    return reference


def differences_in_double(before: EvaluatedStage, after: EvaluatedStage) -> dict[str, Difference]:
    """Return by name the differences in float64 that are larger than another order of operations causes.

    Lines that executors other than eager PyTorch run are left out.
    """
    before_in_double, after_in_double = before.record_in_double(), after.record_in_double()
    if before_in_double is None or after_in_double is None:
        return {}
    old, new = named_values(before_in_double), named_values(after_in_double)
    own, line_of = named_values(before.recording), definitions(after.trace)
    differences_by_name: dict[str, Difference | None] = {}
    for name in new:
        bsym = line_of.get(name)
        if name not in old or name not in own or has_same_values(old[name], new[name]):
            continue
        if bsym is None or bsym.executor in ("", EAGER):
            noise = noise_in_double(own[name], old[name]) + noise_of_inputs(bsym, after_in_double)
            differences_by_name[name] = difference_in_double(old[name], new[name], noise)
    return {name: difference for name, difference in differences_by_name.items() if difference is not None}


def noise_in_double(own: Any, in_double: Any) -> float:
    """Return the difference in float64 that is allowed for a value, from its error in its own dtype."""
    if not all(isinstance(value, torch.Tensor) and value.layout is torch.strided for value in (own, in_double)):
        return 0.0
    if own.shape != in_double.shape or not own.is_floating_point() or not own.numel():
        return 0.0
    error = largest_difference(own, in_double)
    return OF_OWN_ERROR * error if math.isfinite(error) else 0.0


def noise_of_inputs(bsym: BoundSymbol | None, recording: RecordedValues) -> float:
    """Return the difference in float64 that is allowed for a line's results, from the largest value of its inputs."""
    values = () if bsym is None else (recording.final.get(proxy.name) for proxy in bsym.inputs)
    values = (value.source if isinstance(value, DeferredTensor) else value for value in values)
    tensors = [value for value in values if isinstance(value, torch.Tensor) and value.is_floating_point()]
    return OF_INPUTS * max((largest_value(tensor) for tensor in tensors if tensor.numel()), default=0.0)


def difference_in_double(old: Any, new: Any, noise: float = 0.0) -> Difference | None:
    """Return the difference of a floating value in float64; None if another order of operations explains it."""
    dense = all(isinstance(value, torch.Tensor) and value.layout is torch.strided for value in (old, new))
    if not dense or old.shape != new.shape or old.dtype != new.dtype or torch.equal(old, new):
        return None
    if not (old.is_floating_point() or old.is_complex()):
        return None  # integers are compared in their own dtypes, by the number of differences
    largest = largest_difference(new, old)
    return describe_difference(new, old, largest) if largest > SAME_IN_DOUBLE * largest_value(old) + noise else None


def reads_equal_values(bsym: BoundSymbol, before: RecordedValues, after: RecordedValues) -> bool:
    """Whether all inputs of a line have equal values in both stages. A difference is then due to the line."""
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


def local_reference_of(name: str, before: EvaluatedStage) -> Float64Computation:
    """Return a function that computes a line of the earlier stage in float64, from the line's own inputs."""
    bsym = definitions(before.trace).get(name)

    def reference(perturbed: bool = False) -> torch.Tensor | None:
        if bsym is None or before.record_in_double() is None:
            return None
        change = perturb if perturbed else in_float64
        read = {proxy.name: before.recording.final[proxy.name] for proxy in bsym.inputs}
        line = before.trace.having((bsym,), made_by=before.trace.made_by)
        values = convert_inputs(copy_inputs(read, line), change, line)
        return result_in_double(bsym, name, values)

    return reference


def stage_fault(name: str, difference: Difference, before: Trace, after: Trace) -> Fault:
    """Return the fault for a name whose value differs; `faulty_bound_symbol` finds the line."""
    bsym, phrase = faulty_bound_symbol(name, before, after), phrase_of_result(name, difference)
    if bsym is None:
        return return_fault("transform", after, name, phrase)
    return stage_line_fault(after, bsym, name, phrase)


def faulty_bound_symbol(name: str, before: Trace, after: Trace) -> BoundSymbol | None:
    """Return the bound symbol that causes a wrong value in the later stage; None if only the returned values differ."""
    line_of = definitions(after)
    if name.startswith(RESULT):
        index = int(name.removeprefix(RESULT))
        olds, news = list(leaves(before.output)), list(leaves(after.output))
        if index >= min(len(olds), len(news)):
            return None  # a view that the tail trace makes, not a result of this trace
        old, new = olds[index], news[index]
        if getattr(old, "name", None) != getattr(new, "name", None) and getattr(new, "name", "") in definitions(before):
            return None  # the transform returns another value, which the earlier stage also defines
        name = getattr(new, "name", "")
    if name.endswith(AT_END_SUFFIX):
        written = name.removesuffix(AT_END_SUFFIX)
        return lost_write(before, after) or next((bsym for bsym in writes_of(after) if written in bsym.mutates), None)
    written, _, count = name.partition(AFTER_WRITE)
    if count:
        writes = [bsym for bsym in after.bound_symbols if written in bsym.mutates]
        return writes[min(int(count), len(writes)) - 1] if writes else None
    bsym = line_of.get(name)
    if bsym is None:
        return None
    old = definitions(before).get(name)
    if old is None or bound_symbol_text(old) != bound_symbol_text(bsym):
        return (
            first_new_ancestor(bsym, before, line_of) if old is not None and is_equal_except_inputs(old, bsym) else bsym
        )
    return lost_write(before, after) or bsym


def definitions(trace: Trace) -> dict[str, BoundSymbol]:
    """Return the bound symbol that defines each name."""
    return {proxy.name: bsym for bsym in trace.bound_symbols for proxy in bsym.defines}


def is_equal_except_inputs(old: BoundSymbol, new: BoundSymbol) -> bool:
    """Whether two bound symbols are equal except for the names of their inputs."""
    if old.symbol.name != new.symbol.name or len(old.inputs) != len(new.inputs):
        return False
    names = dict(zip((proxy.name for proxy in old.inputs), new.inputs, strict=True))
    return bound_symbol_text(old.rename(names)) == bound_symbol_text(new)


def first_new_ancestor(bsym: BoundSymbol, before: Trace, line_of: Mapping[str, BoundSymbol]) -> BoundSymbol:
    """Return the first bound symbol that `bsym` depends on and that the transform has added.

    The earlier stage does not define the results of an added bound symbol. If there is none, return `bsym` itself.
    """
    names_before, order = definitions(before).keys(), {id(line): index for index, line in enumerate(line_of.values())}
    ancestors, pending = {id(bsym): bsym}, [bsym]
    while pending:
        for proxy in pending.pop().inputs:
            line = line_of.get(proxy.name)
            if line is not None and proxy.name not in names_before and id(line) not in ancestors:
                ancestors[id(line)] = line
                pending.append(line)
    return min(ancestors.values(), key=lambda ancestor: order.get(id(ancestor), len(order)))


def lost_write(before: Trace, after: Trace) -> BoundSymbol | None:
    """Return the first write of the earlier stage that the later stage lacks; None if there is none."""
    texts = {bound_symbol_text(bsym) for bsym in after.bound_symbols if bsym.has_effect}
    return next((bsym for bsym in writes_of(before) if bound_symbol_text(bsym) not in texts), None)


def writes_of(trace: Trace) -> list[BoundSymbol]:
    """Return the bound symbols that write to tensors."""
    return [bsym for bsym in trace.bound_symbols if bsym.mutates]
