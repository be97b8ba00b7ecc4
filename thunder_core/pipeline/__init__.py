"""The whole way from a model and a recipe to an artifact: plan it, carry it out, or only compile."""

from thunder_core.pipeline.application import compile  # noqa: A004 - the word of the field
from thunder_core.pipeline.planning import Plan, plan
from thunder_core.pipeline.progress import STAGES, Progress, Unwatched
from thunder_core.pipeline.request import Request
from thunder_core.pipeline.whole_way import Outcome, carry_out, optimize

__all__ = ["STAGES", "Outcome", "Plan", "Progress", "Request", "Unwatched", "carry_out", "compile", "optimize", "plan"]
