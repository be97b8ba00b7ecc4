"""Two stages of a trace, line by line."""

from __future__ import annotations

import difflib

from thunder_core.tracing.ir.layout import layout
from thunder_core.workflow.inspect.subject import InspectedStage

CONTEXT = 3


def unified(
    before: InspectedStage, after: InspectedStage, *, level: str = "torch", width: int | None = None
) -> list[str]:
    """The unified diff of two stages, without line ends; empty where they are the same."""
    old, new = (layout(stage.read(), level=level, width=width, head=()).splitlines() for stage in (before, after))
    lines = difflib.unified_diff(old, new, before.title, after.title, lineterm="", n=CONTEXT)
    return [line.rstrip() for line in lines]  # an empty line that both have is a blank in a diff
