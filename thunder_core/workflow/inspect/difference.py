"""The difference of two stages of a trace, line by line."""

from __future__ import annotations

import difflib

from thunder_core.tracing.ir.layout import layout
from thunder_core.workflow.inspect.subject import InspectedStage

CONTEXT = 3  # unchanged lines around each change


def unified_diff(
    before: InspectedStage, after: InspectedStage, *, level: str = "torch", width: int | None = None
) -> list[str]:
    """Return the unified diff of two stages, without line ends; empty if the stages are equal."""
    old, new = (layout(stage.read(), level=level, width=width, head=()).splitlines() for stage in (before, after))
    lines = difflib.unified_diff(old, new, before.title, after.title, lineterm="", n=CONTEXT)
    return [line.rstrip() for line in lines]  # a diff writes a common empty line as a space
