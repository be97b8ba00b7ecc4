"""Reduction: the shortest run of operations by which an executor still computes something wrong.

The region that is wrong is compiled once more so that it returns all that it computes; the first wrong value there ends
the run. Then as few operations before it as reproduce the fault are kept (delta debugging over the length of the run).
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
from thunder_core.workflow.validation.inside import Fault


@dataclass(frozen=True)
class ReducedProgram:
    """A few operations, the values of what they read, and the fault that an executor has there."""

    trace: Trace
    values: Values
    fault: Fault


def reduced_program(
    operations: Sequence[BoundSymbol], values: Mapping[str, Any], executors: Sequence[Executor], deadline: Deadline
) -> ReducedProgram | None:
    """The shortest run of operations found by which the fault shows; None where it does not show at all.

    `operations` are those of the region, in the names of its trace, and `values` those of what it reads.
    """
    plain = tuple(unclaimed(bsym) for bsym in operations if bsym.symbol.name != "python.code")
    whole = program_of(plain)
    inputs = {proxy.name: values[proxy.name] for proxy in whole.inputs}
    fault = fault_in(whole, inputs, executors, deadline)
    if fault is None:
        return None
    known = {**inputs, **record(whole, inputs, RandomStates.now(inputs)).final}
    best = ReducedProgram(whole, inputs, fault)
    end = next(n for n, bsym in enumerate(plain) if fault.result in {proxy.name for proxy in bsym.defines})
    for start in starts(end):
        if deadline.is_over:
            break
        run = program_of(plain[start : end + 1])
        own = {proxy.name: known[proxy.name] for proxy in run.inputs}
        found = fault_in(run, own, executors, deadline)
        if found is not None:
            return ReducedProgram(run, own, found)
    return best


def starts(end: int) -> Iterator[int]:
    """The places where runs of 1, 2, 4 operations and so on begin that end at a place."""
    length = 1
    while length <= end + 1:
        yield end + 1 - length
        length *= 2


def unclaimed(bsym: BoundSymbol) -> BoundSymbol:
    """The bound symbol as nobody has claimed it."""
    return replace(bsym, executor="") if bsym.executor else bsym


def program_of(bsyms: Sequence[BoundSymbol]) -> Trace:
    """The computation that bound symbols are, which returns all tensors that they make."""
    made: dict[str, TensorProxy] = {proxy.name: proxy for bsym in bsyms for proxy in bsym.tensors}
    read: dict[str, Proxy] = {}
    defined: set[str] = set()
    for bsym in bsyms:
        read |= {proxy.name: proxy for proxy in bsym.inputs if proxy.name not in defined}
        defined |= {proxy.name for proxy in bsym.defines}
    return Trace("computation", tuple(read.values()), tuple(bsyms), tuple(made.values()), "reduce")


def fault_in(trace: Trace, inputs: Values, executors: Sequence[Executor], deadline: Deadline) -> Fault | None:
    """The first fault that executors have in a computation."""
    with torch.no_grad():
        claimed = claim(trace, executors)
        found = examine_claims(claimed, trace, inputs, RandomStates.now(inputs), Deadline())
    return None if deadline.is_over or not found.faults else found.faults[0]
