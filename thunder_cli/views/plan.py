"""The plan of an optimization, printed before it runs; each row is printed as soon as it is known."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table
from rich.text import Text

from thunder_core.workflow.pipeline.request.first_rows import first_rows
from thunder_core.workflow.pipeline.request.request import Request

STYLES = {"degraded": "yellow", "validation": "yellow", "lacking": "red", "busy": "yellow", "skipped": "dim"}


LABEL_WIDTH = 2 + len("transforms")  # the width of the longest label, which aligns rows that are printed separately

Row = tuple[str, str]


@dataclass
class PlanPrinter:
    """Prints the rows of a plan on a console; a row that was already printed is skipped."""

    console: Console
    printed: list[Row] = field(default_factory=list)

    def begin(self, request: Request) -> None:
        """Print the facts about a request that are known before PyTorch is imported."""
        self.show(first_rows(request.model))

    def show(self, rows: Iterable[Row]) -> None:
        """Print the rows that were not printed yet."""
        new = [row for row in rows if row not in self.printed]
        if new and not self.printed:
            self.console.print(Text("Plan", "bold"))
        self.printed += new
        if new:
            self.console.print(grid_of(new))

    def end(self, rows: Iterable[Row]) -> None:
        """Print the remaining rows, and an empty line."""
        self.show(rows)
        self.console.print()


def grid_of(rows: Iterable[Row]) -> Table:
    """Return the rows as a grid, with one row for each fact; rows about missing parts are coloured."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, min_width=LABEL_WIDTH)
    grid.add_column(overflow="fold")
    for matter, text in rows:
        grid.add_row(Text(f"  {matter}", "dim"), Text(text, STYLES.get(matter, "")))
    return grid
