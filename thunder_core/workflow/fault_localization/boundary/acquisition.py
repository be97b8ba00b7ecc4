"""The acquired computation beside eager PyTorch: the calls that the program really makes, and those of the trace.

A line and a call of the same function at the same place of the program belong together. Behind each line the result of
eager PyTorch is taken over, so that the next line reads what the program's own call has read: what differs then is the
line's own mistake, however much a program amplifies rounding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Any

import torch

from thunder_core.backend.claiming.check import RandomStates, perturb
from thunder_core.backend.claiming.comparison import Difference, Exact, different_at
from thunder_core.backend.claiming.copies import Values, copied
from thunder_core.backend.claiming.deferred_tensor import Compute, deferred
from thunder_core.backend.claiming.double_precision import in_float64, result_in_double
from thunder_core.backend.claiming.free import last_uses
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves
from thunder_core.workflow.fault_localization.boundary.eager_calls import EagerCall, is_dense
from thunder_core.workflow.fault_localization.line_faults import line_fault, of_result
from thunder_core.workflow.fault_localization.own_inputs import own_inputs
from thunder_core.workflow.fault_localization.recording import settings_kept
from thunder_core.workflow.fault_localization.rounding import rounding_difference
from thunder_core.workflow.validation.inside import Fault

Key = tuple[str, str, int, str, int]  # of a call: function, file, line, module, number of results


@dataclass(frozen=True)
class Followed:
    """An acquired computation that was evaluated beside eager PyTorch: its first wrong line, or else its values.

    `values` are the tensors that it returns, and those that it was given, as it leaves them behind.
    """

    fault: Fault | None
    values: tuple[Any, ...] = ()
    matched: int = 0


def follow(trace: Trace, inputs: Values, states: RandomStates, calls: Sequence[EagerCall]) -> Followed:
    """Evaluate an acquired trace on copies of inputs, each line on what eager PyTorch's calls have given it."""
    counterparts = matched_calls(trace, calls)
    values = own_inputs({**inputs, **trace.constants}, trace)
    kept = {*inputs, *(proxy.name for proxy in trace.outputs)}
    with torch.no_grad(), settings_kept(trace.bound_symbols):
        states.restore()
        for place, (bsym, dying) in enumerate(zip(trace.bound_symbols, last_uses(trace), strict=True)):
            given = values_read(bsym, values)
            evaluate((bsym,), values)
            fault = take_over(trace, bsym, values, given, counterparts.get(place, ()))
            if fault is not None:
                return Followed(fault)
            for proxy in dying:
                if proxy.name not in kept:
                    values.pop(proxy.name, None)
    at_the_end = (values[name] for name in inputs)
    returned = (values[one.name] for one in leaves(trace.output) if isinstance(one, Proxy))
    return Followed(None, (*returned, *at_the_end), len(counterparts))


def matched_calls(trace: Trace, calls: Sequence[EagerCall]) -> dict[int, tuple[EagerCall, ...]]:
    """The eager calls that lines of a trace may stand for, by the places of the lines; both are in one order.

    There are several where the program makes more calls of a kind at a place than the trace has, or fewer: a trace
    leaves out calls that return what they are given. The likeliest comes first.
    """
    lines, made = [key_of_line(bsym) for bsym in trace.bound_symbols], [key_of_call(call) for call in calls]
    counts = Counter(lines)
    ambiguous = {key for key, count in Counter(made).items() if count != counts[key]}
    blocks = SequenceMatcher(None, lines, made, autojunk=False).get_matching_blocks()
    pairs = [(a + n, b + n) for a, b, size in blocks for n in range(size) if lines[a + n][-1]]
    others = {key: tuple(call for call, own in zip(calls, made, strict=True) if own == key) for key in ambiguous}
    return {line: (calls[call], *others.get(lines[line], ())) for line, call in pairs}


def key_of_line(bsym: BoundSymbol) -> Key:
    """The key of a line of a trace."""
    source = bsym.source
    filename, lineno = (source.filename, source.lineno) if source is not None else ("", 0)
    return bsym.symbol.short_name, filename, lineno, bsym.module, len(results_of(bsym))


def key_of_call(call: EagerCall) -> Key:
    """The key of a call of the program."""
    return call.name, call.place.filename, call.place.lineno, call.place.module, call.result_count


def results_of(bsym: BoundSymbol) -> list[TensorProxy]:
    """The tensors that a bound symbol returns, those included that it was given and has written to."""
    return [leaf for leaf in leaves(bsym.output) if isinstance(leaf, TensorProxy)]


def values_read(bsym: BoundSymbol, values: Values) -> Values:
    """The values that a bound symbol reads; copies, where it writes to any."""
    read = {proxy.name: values[proxy.name] for proxy in bsym.inputs}
    return copied(read) if bsym.mutates else read


def take_over(
    trace: Trace, bsym: BoundSymbol, values: Values, given: Values, calls: Sequence[EagerCall]
) -> Fault | None:
    """Give the results of a line the values of the first of the calls that agrees; a fault where none of them does."""
    ours = [(proxy.name, values[proxy.name]) for proxy in results_of(bsym)]
    differences = (first_difference(bsym, ours, given, call) for call in calls)
    found = list(takewhile(lambda difference: difference is not None, differences))
    if len(found) == len(calls):
        return acquisition_fault(trace, bsym, *found[0]) if found and found[0] else None
    for (_, own), theirs in zip(ours, calls[len(found)].results, strict=True):
        if is_dense(own) and not torch.equal(own, theirs):
            overwrite(own, theirs)
    return None


def first_difference(
    bsym: BoundSymbol, ours: Sequence[tuple[str, Any]], given: Values, call: EagerCall
) -> tuple[str, Difference] | None:
    """The first result of a line that is not that of a call, and how it differs; None where all are."""
    for (name, own), theirs in zip(ours, call.results, strict=True):
        difference = difference_of(own, theirs, exact_of(bsym, name, given)) if is_dense(own) else None
        if difference is not None:
            return name, difference
    return None


def overwrite(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """Write the values of a tensor into another one, so that views of its memory have them too."""
    try:
        ours.copy_(theirs)
    except RuntimeError:
        return  # several elements share one place in memory, whose owner was compared before


def difference_of(ours: torch.Tensor, theirs: torch.Tensor, exact: Exact) -> Difference | None:
    """The difference of two results of one call that is more than rounding.

    `exact` computes the line in float64: the line itself is as far from that as rounding moves it, and eager PyTorch's
    result is further away where the line is another one.
    """
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return Difference(f"is {ours.dtype}{list(ours.shape)}, but {theirs.dtype}{list(theirs.shape)} in eager PyTorch")
    measured = rounding_difference(theirs, ours, exact)
    return None if measured.difference is None else different_at(ours, theirs, measured.largest)


def exact_of(bsym: BoundSymbol, name: str, given: Values) -> Exact:
    """The function that computes a result of a line in float64, from what the line has read."""

    def exact(perturbed: bool = False) -> torch.Tensor | None:
        change = perturb if perturbed else in_float64
        values = converted(bsym, given, change)
        return result_in_double(bsym, name, values)

    return exact


def converted(bsym: BoundSymbol, given: Values, change: Compute) -> Values:
    """The values that a line has read, in another precision: large tensors are converted while they are read."""
    if bsym.mutates:
        return {name: change(value) for name, value in copied(given).items()}
    return {name: deferred(value, change) for name, value in given.items()}


def acquisition_fault(trace: Trace, bsym: BoundSymbol, name: str, difference: Difference) -> Fault:
    """The fault of a line that does not compute what the program's own call does."""
    return line_fault("acquisition", trace.made_by, trace.name, bsym, name, of_result(name, difference))
