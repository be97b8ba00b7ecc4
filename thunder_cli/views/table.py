"""The common form of all tables, and their titles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from thunder_core.workflow.benchmark import Verdict

DIM, HEAD = "dim", "bold"
GOOD, BAD = "green", "bold red"
VERDICTS: Mapping[Verdict, str] = {
    "faster": GOOD,
    "slower": BAD,
    "unstable": "bold yellow",
    "not distinguishable": "",
}
MEASURING_WIDTH = 1000  # columns; no table is wider, so that its natural width is measured without wrapping


def space_out(parts: Iterable[RenderableType]) -> Iterator[RenderableType]:
    """Yield the parts of an output with an empty line between them."""
    for number, part in enumerate(parts):
        if number:
            yield Text()
        yield part


def with_title(title: str, detail: str, body: RenderableType) -> RenderableType:
    """Return a title with a detail, and a part of the output below the title."""
    return Group(Text.assemble((title, HEAD), (f"  {detail}" if detail else "", DIM)), body)


def fit_table(
    build: Callable[[Sequence[str]], Table], columns: Sequence[str], left_out_first: Sequence[str], width: int
) -> Table:
    """Return a table that fits a console of this width, by leaving out columns of `left_out_first` in their order.

    The table may still be wider than the console when all columns of `left_out_first` are left out.
    """
    shown = list(columns)
    for column in (*left_out_first, None):
        table = build(shown)
        if column is None or width_of(table) <= width:
            break
        shown = [name for name in shown if name != column]
    return table


def width_of(table: Table) -> int:
    """Return the width of a table in which no column is wrapped."""
    return Console(width=MEASURING_WIDTH).measure(table).maximum


def plain_table(*columns: str, text_columns: int = 1) -> Table:
    """Return a table with a line only under its header; the first `text_columns` are text, the others numbers."""
    table = Table(box=box.SIMPLE_HEAD, header_style=DIM, pad_edge=False, show_edge=False)
    for number, column in enumerate(columns):
        is_text = number < text_columns
        table.add_column(
            column, justify="left" if is_text else "right", no_wrap=not is_text or text_columns > 1, overflow="fold"
        )
    return table
