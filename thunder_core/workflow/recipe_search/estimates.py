"""Estimates: candidates that the plan rules out, which costs no trial."""

from __future__ import annotations

from dataclasses import dataclass

from thunder_core.foundation.errors import ThunderError
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.session.planning import Plan, outline, with_memory
from thunder_core.workflow.recipe_search.candidate import Candidate
from thunder_core.workflow.report.number_format import size
from thunder_core.workflow.report.search import SearchBounds


@dataclass(frozen=True)
class Estimate:
    """The estimate by a plan: why a candidate is ruled out, if it is, and the least bytes that its weights take."""

    candidate: Candidate
    reason: str = ""
    least_memory: int | None = None


def estimate(candidate: Candidate, request: Request, base: Plan, bounds: SearchBounds) -> Estimate:
    """The estimate of a candidate by its plan, beside the plan of the recipe that it adds to."""
    try:
        planned = outline(candidate.request(request))
        if lost := lost_parts(planned, base):
            return Estimate(candidate, lost)
        planned = with_memory(planned)
    except ThunderError as error:
        return Estimate(candidate, f"{error.code} {error.what}")
    return estimate_of_memory(candidate, planned, bounds)


def lost_parts(planned: Plan, base: Plan) -> str:
    """The parts of a candidate, but for those of the recipe that it adds to, that this machine lacks; in words."""
    known = {(part.part, part.reason) for part in base.prepared.degraded}
    lost = [part for part in planned.prepared.degraded if (part.part, part.reason) not in known]
    reasons = [f"{part.part}: {part.reason}" for part in lost]
    usual = {one.name for one in base.prepared.executors}
    added = (one for one in planned.prepared.executors if one.name not in usual and one.reason)
    reasons += [f"{one.name}: {one.reason}" for one in added]
    return "; ".join(dict.fromkeys(reasons))


def estimate_of_memory(candidate: Candidate, planned: Plan, bounds: SearchBounds) -> Estimate:
    """The estimate of a candidate whose machine lacks nothing but, perhaps, memory."""
    if planned.lacking_memory is not None:
        return Estimate(candidate, f"{planned.lacking_memory.code} {planned.lacking_memory.what}")
    if planned.memory is None:
        return Estimate(candidate)
    least = planned.memory.new_weights or planned.memory.weights
    if bounds.max_memory is not None and least > bounds.max_memory:
        allowed = size(bounds.max_memory)
        return Estimate(candidate, f"its weights alone take {size(least)}, and at most {allowed} is allowed", least)
    return Estimate(candidate, "", least)
