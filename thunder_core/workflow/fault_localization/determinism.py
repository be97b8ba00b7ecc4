"""Determinism: a program that runs twice from the same inputs and random states must compute the same bits."""

from __future__ import annotations

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.claiming.claim_checks import uninitialized_results
from thunder_core.backend.claiming.comparison import Difference, describe_difference, largest_difference
from thunder_core.backend.claiming.copies import Values
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.line_faults import line_fault, phrase_of_result
from thunder_core.workflow.fault_localization.recording import record
from thunder_core.workflow.fault_localization.stages import is_equal
from thunder_core.workflow.validation.internal_check import Fault


def first_nondeterministic_line(claimed: Trace, inputs: Values, states: RandomStates) -> Fault | None:
    """Return the first line whose result differs in a second run on the same inputs; None if there is none."""
    first, second = (record(claimed, inputs, states) for _ in range(2))
    for bsym in claimed.bound_symbols:
        uninitialized = uninitialized_results(bsym, (bsym, *bsym.subsymbols))
        for proxy in bsym.tensors:
            if proxy.name in uninitialized:
                continue
            before, after = first.values[proxy.name], second.values[proxy.name]
            if not is_equal(before, after):
                largest = largest_difference(after, before)
                phrase = describe_difference(after, before, largest).what.replace(
                    "in eager PyTorch", "in the first run"
                )
                difference = phrase_of_result(proxy.name, Difference(phrase, largest))
                return line_fault("nondeterminism", bsym.executor, claimed.name, bsym, proxy.name, difference)
    return None
