"""The pipeline from a model and a recipe to an artifact.

The names below are imported when they are first used. A request is created and checked (`request`, `request_checks`)
without PyTorch. The modules that plan and carry out a request need PyTorch and transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from thunder_core.foundation import plugins

if TYPE_CHECKING:
    from thunder_core.workflow.pipeline.optimization import Outcome, carry_out, optimize
    from thunder_core.workflow.pipeline.ranks_optimization import follow
    from thunder_core.workflow.pipeline.request.request import Request
    from thunder_core.workflow.pipeline.session.application import compile  # noqa: A004 - the usual name
    from thunder_core.workflow.pipeline.session.plan import Plan
    from thunder_core.workflow.pipeline.session.planning import outline, plan, with_memory
    from thunder_core.workflow.pipeline.session.progress import STAGES, Progress, SilentProgress

HOMES = {
    "STAGES": "session.progress",
    "Outcome": "optimization",
    "Plan": "session.plan",
    "Progress": "session.progress",
    "Request": "request.request",
    "SilentProgress": "session.progress",
    "carry_out": "optimization",
    "follow": "ranks_optimization",
    "compile": "session.application",
    "optimize": "optimization",
    "outline": "session.planning",
    "plan": "session.planning",
    "with_memory": "session.planning",
}

__all__ = [
    "STAGES",
    "Outcome",
    "Plan",
    "Progress",
    "Request",
    "SilentProgress",
    "carry_out",
    "compile",
    "follow",
    "optimize",
    "outline",
    "plan",
    "with_memory",
]

__getattr__ = plugins.lazy_face(__name__, HOMES)
