"""Determinism: a program that runs twice from the same inputs and random states must compute the same bits."""

from __future__ import annotations

from collections import Counter

import torch

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.claiming.claim_checks import uninitialized_results
from thunder_core.backend.claiming.comparison import Difference, describe_difference, largest_difference
from thunder_core.backend.claiming.copies import Values
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.line_faults import line_fault, phrase_of_result
from thunder_core.workflow.fault_localization.recording import name_after_write, record
from thunder_core.workflow.fault_localization.stages import is_equal
from thunder_core.workflow.validation.internal_check import Fault


def first_nondeterministic_line(claimed: Trace, inputs: Values, states: RandomStates) -> Fault | None:
    """Return the first line whose result differs in a second run on the same inputs; None if there is none."""
    first, second = (record(claimed, inputs, states) for _ in range(2))
    uninitialized, writes = set[str](), Counter[str]()
    for bsym in claimed.bound_symbols:
        uninitialized |= uninitialized_results(bsym, (bsym, *bsym.subsymbols))
        writes.update(bsym.mutates)
        results = {proxy.name: proxy.name for proxy in bsym.tensors}
        results |= {name: name_after_write(name, writes[name]) for name in bsym.mutates}
        for name in (recorded for own, recorded in results.items() if own not in uninitialized):
            before, after = first.values[name], second.values[name]
            if not is_equal(before, after):
                difference = difference_of_runs(name, before, after)
                return line_fault("nondeterminism", bsym.executor, claimed.name, bsym, name, difference)
    return None


def difference_of_runs(name: str, first: torch.Tensor, second: torch.Tensor) -> Difference:
    """Return the difference of a result in two runs as a phrase."""
    largest = largest_difference(second, first)
    phrase = describe_difference(second, first, largest).what.replace("in eager PyTorch", "in the first run")
    return phrase_of_result(name, Difference(phrase, largest))
