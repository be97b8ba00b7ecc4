"""Marks that show the progress of this process.

If a rank makes no mark for a long time, it may be in an endless loop.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProgressMark:
    """The number of marks so far, and the step that began with the last mark."""

    number: int = 0
    step: str = ""


_last = ProgressMark()


def mark_progress(step: str) -> None:
    """Note that a step begins, such as the compilation of a region."""
    global _last  # noqa: PLW0603 - all threads of a process share the marks
    _last = ProgressMark(_last.number + 1, step)


def last_mark() -> ProgressMark:
    """Return the last mark of this process."""
    return _last
