"""Compare the lines of a traced computation with the calls of PyTorch that the program makes in eager PyTorch.

A line is compared with the call of the same function at the same source line of the program. After each line, eager
PyTorch's result replaces the line's result, so that the next line reads the same values as the program's own call. A
difference is then a mistake of that line, even if the program amplifies rounding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from itertools import takewhile
from typing import Any

import torch

from thunder_core.backend.claiming.check import RandomStates, no_exact_value, perturb
from thunder_core.backend.claiming.comparison import Difference, Float64Computation, describe_difference
from thunder_core.backend.claiming.copies import Values, copy_values
from thunder_core.backend.claiming.deferred_tensor import Compute, defer
from thunder_core.backend.claiming.double_precision import in_float64, result_in_double
from thunder_core.backend.claiming.free import last_uses
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves
from thunder_core.workflow.fault_localization.boundary.eager_calls import EagerCall, is_dense
from thunder_core.workflow.fault_localization.input_copies import copy_inputs, values_read
from thunder_core.workflow.fault_localization.line_faults import line_fault, phrase_of_result
from thunder_core.workflow.fault_localization.recording import preserve_settings
from thunder_core.workflow.fault_localization.rounding import rounding_difference
from thunder_core.workflow.fault_localization.time_limit import require_time
from thunder_core.workflow.validation.internal_check import Fault

ExactOf = Callable[[str], Float64Computation]  # for the name of a result
Key = tuple[str, str, int, str, int]  # function, file, line, module, number of results


@dataclass(frozen=True)
class LineEvaluation:
    """The result of evaluating a traced computation line by line with eager PyTorch: the first wrong line, or values.

    `values` are the returned tensors, and the inputs after the evaluation. `matched` is the number of lines for which
    a call was found.
    """

    fault: Fault | None
    values: tuple[Any, ...] = ()
    matched: int = 0


def evaluate_with_eager_results(
    trace: Trace, inputs: Values, states: RandomStates, calls: Sequence[EagerCall]
) -> LineEvaluation:
    """Evaluate a traced computation on copies of inputs; each line reads the results of eager PyTorch's calls."""
    counterparts = match_calls(trace, calls)
    values = copy_inputs({**inputs, **trace.constants}, trace)
    names_to_keep = {*inputs, *(proxy.name for proxy in trace.outputs)}
    with torch.no_grad(), preserve_settings(trace.bound_symbols):
        states.restore()
        for index, (bsym, dying) in enumerate(zip(trace.bound_symbols, last_uses(trace), strict=True)):
            require_time()
            read, before = values_read(bsym, values), states.current_states()
            evaluate((bsym,), values)
            states_after = states.current_states()
            fault = adopt_results(
                trace,
                bsym,
                values,
                counterparts.get(index, ()),
                exact_values(bsym, read, drew=not states_after.equal(before)),
            )
            states_after.restore()  # the comparison may have computed the line again
            if fault is not None:
                return LineEvaluation(fault)
            for proxy in dying:
                if proxy.name not in names_to_keep:
                    values.pop(proxy.name, None)
    at_the_end = (values[name] for name in inputs)
    returned = (values[leaf.name] for leaf in leaves(trace.output) if isinstance(leaf, Proxy))
    return LineEvaluation(None, (*returned, *at_the_end), len(counterparts))


def match_calls(trace: Trace, calls: Sequence[EagerCall]) -> dict[int, tuple[EagerCall, ...]]:
    """Return the eager calls that may correspond to each line of a trace, by the source line, in the trace's order.

    A trace omits calls that return their input. If therefore a source line has more or fewer calls of a function than
    the trace has lines, each of these lines gets several calls, the most likely call first.
    """
    trace_keys, call_keys = [key_of_line(bsym) for bsym in trace.bound_symbols], [key_of_call(call) for call in calls]
    counts = Counter(trace_keys)
    ambiguous = {key for key, count in Counter(call_keys).items() if count != counts[key]}
    blocks = SequenceMatcher(None, trace_keys, call_keys, autojunk=False).get_matching_blocks()
    pairs = [(a + n, b + n) for a, b, size in blocks for n in range(size) if trace_keys[a + n][-1]]
    others = {key: tuple(call for call, own in zip(calls, call_keys, strict=True) if own == key) for key in ambiguous}
    return {line: (calls[call], *others.get(trace_keys[line], ())) for line, call in pairs}


def key_of_line(bsym: BoundSymbol) -> Key:
    """Return the key of a line of a trace."""
    source = bsym.source
    filename, lineno = (source.filename, source.lineno) if source is not None else ("", 0)
    return bsym.symbol.short_name, filename, lineno, bsym.module, len(results_of(bsym))


def key_of_call(call: EagerCall) -> Key:
    """Return the key of a call of the program."""
    return call.name, call.location.filename, call.location.lineno, call.location.module, call.result_count


def results_of(bsym: BoundSymbol) -> list[TensorProxy]:
    """Return the tensors that a bound symbol returns, including inputs that it has written to."""
    return [leaf for leaf in leaves(bsym.output) if isinstance(leaf, TensorProxy)]


def adopt_results(
    trace: Trace, bsym: BoundSymbol, values: Values, calls: Sequence[EagerCall], exact_of: ExactOf
) -> Fault | None:
    """Replace a line's results by the results of the first call that agrees with them; return a fault if none does."""
    actual = [(proxy.name, values[proxy.name]) for proxy in results_of(bsym)]
    differences = (first_difference(actual, call, exact_of) for call in calls)
    unequal = list(takewhile(lambda difference: difference is not None, differences))
    if len(unequal) == len(calls):
        return acquisition_fault(trace, bsym, *unequal[0]) if unequal and unequal[0] else None
    for (_, own), expected in zip(actual, calls[len(unequal)].results, strict=True):
        if is_dense(own) and not torch.equal(own, expected):
            overwrite(own, expected)
    return None


def first_difference(
    actual: Sequence[tuple[str, Any]], call: EagerCall, exact_of: ExactOf
) -> tuple[str, Difference] | None:
    """Return the first result of a line that differs from the call's, with the difference; None if all agree."""
    for (name, own), expected in zip(actual, call.results, strict=True):
        difference = difference_of(own, expected, exact_of(name)) if is_dense(own) else None
        if difference is not None:
            return name, difference
    return None


def overwrite(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Copy the values of a tensor into another tensor, so that views of its memory also have these values."""
    try:
        actual.copy_(expected)
    except RuntimeError:
        return  # elements share memory, and the base tensor was compared before


def difference_of(actual: torch.Tensor, expected: torch.Tensor, exact: Float64Computation) -> Difference | None:
    """Return the difference of two results of one call if it is more than rounding; else None.

    `exact` computes the line in float64. Rounding is estimated as the error of the line's own result in float64.
    """
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        return Difference(
            f"is {actual.dtype}{list(actual.shape)}, but {expected.dtype}{list(expected.shape)} in eager PyTorch"
        )
    measured = rounding_difference(expected, actual, exact)
    return None if measured.difference is None else describe_difference(actual, expected, measured.largest)


def exact_values(bsym: BoundSymbol, inputs: Values, *, drew: bool) -> ExactOf:
    """Return a function from the name of a line's result to the function that computes this result in float64.

    A line that drew random numbers (`drew`) has no value in float64, because another dtype gives other numbers.
    """

    def exact(name: str, perturbed: bool = False) -> torch.Tensor | None:
        change = perturb if perturbed else in_float64
        return result_in_double(bsym, name, convert_line_inputs(bsym, inputs, change))

    return lambda name: no_exact_value if drew else partial(exact, name)


def convert_line_inputs(bsym: BoundSymbol, inputs: Values, change: Compute) -> Values:
    """Return a line's inputs in another precision; large tensors are converted when they are read."""
    if bsym.mutates:
        return {name: change(value) for name, value in copy_values(inputs).items()}
    return {name: defer(value, change) for name, value in inputs.items()}


def acquisition_fault(trace: Trace, bsym: BoundSymbol, name: str, difference: Difference) -> Fault:
    """Return the fault of a line whose result differs from the program's own call."""
    return line_fault("acquisition", trace.made_by, trace.name, bsym, name, phrase_of_result(name, difference))
