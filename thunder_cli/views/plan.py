"""The plan of an optimization, printed before it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from thunder_core.workflow.pipeline import Plan

STYLES = {"degraded": "yellow", "validation": "yellow", "lacking": "red", "busy": "yellow", "skipped": "dim"}


def plan_view(plan: Plan) -> RenderableType:
    """The plan as a grid, one row for each fact; rows about missing parts are coloured."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for matter, text in plan.rows():
        style = STYLES.get(matter, "")
        grid.add_row(Text(f"  {matter}", "dim"), Text(text, style))
    return Group(Text("Plan", "bold"), grid, Text())
