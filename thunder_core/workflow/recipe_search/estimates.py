"""Estimate candidates from their plans, and rule out candidates without a trial."""

from __future__ import annotations

from dataclasses import dataclass

from thunder_core.foundation.errors import ThunderError
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.session.plan import Plan
from thunder_core.workflow.pipeline.session.planning import outline, with_memory
from thunder_core.workflow.recipe_search.candidate import Candidate
from thunder_core.workflow.report.number_format import size
from thunder_core.workflow.report.search import SearchBounds


@dataclass(frozen=True)
class Estimate:
    """An estimate from a plan. `reason` says why the candidate is ruled out, or is empty.

    `least_memory` is the number of bytes of the weights, or None if it is unknown.
    """

    candidate: Candidate
    reason: str = ""
    least_memory: int | None = None


def estimate(candidate: Candidate, request: Request, base: Plan, bounds: SearchBounds) -> Estimate:
    """Estimate a candidate from its plan, compared with the plan of the base recipe."""
    try:
        planned = outline(candidate.request(request))
        if lost := lost_parts(planned, base):
            return Estimate(candidate, lost)
        planned = with_memory(planned)
    except ThunderError as error:
        return Estimate(candidate, f"{error.code} {error.what}")
    return estimate_of_memory(candidate, planned, bounds)


def lost_parts(planned: Plan, base: Plan) -> str:
    """Describe the parts of a candidate that this machine cannot run, except for parts of the base recipe."""
    degraded = {(part.part, part.reason) for part in base.prepared.degraded}
    lost = [part for part in planned.prepared.degraded if (part.part, part.reason) not in degraded]
    reasons = [f"{part.part}: {part.reason}" for part in lost]
    usual = {executor.name for executor in base.prepared.executors}
    added = (executor for executor in planned.prepared.executors if executor.name not in usual and executor.reason)
    reasons += [f"{executor.name}: {executor.reason}" for executor in added]
    return "; ".join(dict.fromkeys(reasons))


def estimate_of_memory(candidate: Candidate, planned: Plan, bounds: SearchBounds) -> Estimate:
    """Estimate a candidate that this machine can run, if the memory is sufficient."""
    if planned.memory_error is not None:
        return Estimate(candidate, f"{planned.memory_error.code} {planned.memory_error.what}")
    if planned.memory is None:
        return Estimate(candidate)
    least = planned.memory.new_weights or planned.memory.weights
    if bounds.max_memory is not None and least > bounds.max_memory:
        allowed = size(bounds.max_memory)
        return Estimate(candidate, f"its weights alone take {size(least)}, and at most {allowed} is allowed", least)
    return Estimate(candidate, "", least)
