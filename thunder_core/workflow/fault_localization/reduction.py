"""Reduce a wrong region to a short sequence of operations for which the executor still computes a wrong result.

The wrong region is compiled again so that it returns all its values. Sequences of 1, 2, 4 and more operations that end
with the first wrong value are tried, until a sequence reproduces the fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from thunder_core.backend.claiming.check import RandomStates
from thunder_core.backend.claiming.claim import claim
from thunder_core.backend.claiming.copies import Values
from thunder_core.backend.claiming.executor import Executor
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.fault_localization.claims import examine_claims
from thunder_core.workflow.fault_localization.recording import record
from thunder_core.workflow.fault_localization.time_limit import Deadline
from thunder_core.workflow.validation.internal_check import Fault


@dataclass(frozen=True)
class ReducedProgram:
    """A few operations, the values of their inputs, and the fault of an executor."""

    trace: Trace
    values: Values
    fault: Fault


def reduced_program(
    operations: Sequence[BoundSymbol], values: Mapping[str, Any], executors: Sequence[Executor], deadline: Deadline
) -> ReducedProgram | None:
    """Return the shortest tried sequence that reproduces the fault; None if even the region does not reproduce it.

    `operations` are the operations of the region, with the names of its trace, and `values` the values of its inputs.
    """
    plain = tuple(without_executor(bsym) for bsym in operations if bsym.symbol.name != "python.code")
    region = program_of(plain)
    inputs = {proxy.name: values[proxy.name] for proxy in region.inputs}
    fault = fault_in(region, inputs, executors, deadline)
    if fault is None:
        return None
    all_values = {**inputs, **record(region, inputs, RandomStates.now(inputs)).final}
    ends = [n for n, bsym in enumerate(plain) if fault.result in {proxy.name for proxy in bsym.defines}]
    for end in ends[:1]:  # empty if the fault is in a tensor that an operation writes to and does not define
        for start in first_indices(end):
            if deadline.is_over:
                break
            sequence = program_of(plain[start : end + 1])
            own = {proxy.name: all_values[proxy.name] for proxy in sequence.inputs}
            shorter_fault = fault_in(sequence, own, executors, deadline)
            if shorter_fault is not None:
                return ReducedProgram(sequence, own, shorter_fault)
    return ReducedProgram(region, inputs, fault)


def first_indices(end: int) -> Iterator[int]:
    """Yield the first indices of sequences of 1, 2, 4 and more operations that end at an index."""
    length = 1
    while length <= end + 1:
        yield end + 1 - length
        length *= 2


def without_executor(bsym: BoundSymbol) -> BoundSymbol:
    """Return a bound symbol without its executor."""
    return replace(bsym, executor="") if bsym.executor else bsym


def program_of(bsyms: Sequence[BoundSymbol]) -> Trace:
    """Return a computation of bound symbols, which returns all tensors that they make."""
    defined_proxies: dict[str, TensorProxy] = {proxy.name: proxy for bsym in bsyms for proxy in bsym.tensors}
    inputs: dict[str, Proxy] = {}
    defined: set[str] = set()
    for bsym in bsyms:
        inputs |= {proxy.name: proxy for proxy in bsym.inputs if proxy.name not in defined}
        defined |= {proxy.name for proxy in bsym.defines}
    return Trace("computation", tuple(inputs.values()), tuple(bsyms), tuple(defined_proxies.values()), "reduce")


def fault_in(trace: Trace, inputs: Values, executors: Sequence[Executor], deadline: Deadline) -> Fault | None:
    """Return the first fault of the executors in a computation; None if there is none."""
    with torch.no_grad():
        claimed = claim(trace, executors)
        findings = examine_claims(claimed, trace, inputs, RandomStates.now(inputs), Deadline())
    return None if deadline.is_over or not findings.faults else findings.faults[0]
