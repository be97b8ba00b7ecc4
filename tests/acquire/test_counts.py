"""The strings that identify the counts of a recording."""

from __future__ import annotations

from typing import Any

from thunder_core.foundation.errors import SourceLine
from thunder_core.frontend.acquire.counts import CountSources
from thunder_core.tracing.capture.quantities import COUNT

UNUSED: Any = None


def text_after(*lines: int) -> str:
    """Return the string for a count at the last of these lines, after a count at each of the others."""
    remaining = iter(lines)
    sources = CountSources(UNUSED, UNUSED, lambda: SourceLine("program.py", next(remaining)))
    texts = [sources.observed.setdefault(text := sources._text(COUNT), 0) or text for _ in lines]
    return texts[-1]


def test_text_of_count_does_not_depend_on_lines_with_the_same_first_digits() -> None:
    assert text_after(12, 1) == text_after(1) == "count of nonzero elements at program.py:1"


def test_texts_of_counts_at_one_line_have_numbers() -> None:
    assert text_after(1, 12, 1) == "count of nonzero elements at program.py:1 (2)"
    assert text_after(1, 1, 1) == "count of nonzero elements at program.py:1 (3)"
