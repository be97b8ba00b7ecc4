"""Text in Markdown, escaped so that no part of it is interpreted as markup."""

from __future__ import annotations


def cell(text: object) -> str:
    """Return text for a cell of a Markdown table: one line, with bars, links and tags escaped."""
    escaped = str(text).replace("\\", "\\\\").replace("|", "\\|").replace("[", "\\[").replace("<", "&lt;")
    return " ".join(escaped.split())


def code(text: object) -> str:
    """Return a text as Markdown code."""
    return f"`{' '.join(str(text).replace('`', chr(39)).split())}`"


def code_cell(text: object) -> str:
    """Return a text as Markdown code in a cell of a table."""
    return code(text).replace("|", "\\|")
