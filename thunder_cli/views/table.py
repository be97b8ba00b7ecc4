"""The one form of our tables, and titles over them."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

DIM, HEAD = "dim", "bold"


def titled(title: str, detail: str, body: RenderableType) -> RenderableType:
    """A part of the output under its title."""
    return Group(Text.assemble((title, HEAD), (f"  {detail}" if detail else "", DIM)), body)


def plain_table(*columns: str, text: int = 1) -> Table:
    """A table without lines but the one under its header; the first columns hold text, the others numbers."""
    table = Table(box=box.SIMPLE_HEAD, header_style=DIM, pad_edge=False, show_edge=False)
    for number, column in enumerate(columns):
        words = number < text
        table.add_column(column, justify="left" if words else "right", no_wrap=not words or text > 1, overflow="fold")
    return table
