"""The errors of a computation that depend on tensor values and that the program catches, as data."""

from __future__ import annotations

from dataclasses import dataclass

from thunder_core.foundation.errors import SourceLine

Lines = tuple[SourceLine, ...]


@dataclass(frozen=True)
class CatchableErrors:
    """The errors that a computation may raise because of tensor values, and that the program catches.

    Tracing raised none of them. The operations at `lines` may raise them; `lines_of_statements` are the indices of the
    statements of the printed computation that have such operations, each with its lines. Before such an error, the
    computation may have written to the inputs at the indices `written`. `draws` says whether it draws random numbers,
    and `writes` whether it writes to inputs at all.
    """

    lines: Lines
    lines_of_statements: tuple[tuple[int, Lines], ...]
    written: tuple[int, ...] = ()
    draws: bool = False
    writes: bool = False

    def at(self, lines: frozenset[SourceLine] | None) -> frozenset[SourceLine]:
        """Return the lines with caught errors among the possible `lines` of an error; None if its line is unknown.

        With an unknown line, the result is empty if the computation may have written to its inputs after the lines.
        (Writes before the lines are undone.)
        """
        if lines is None:
            return frozenset() if self.writes else frozenset(self.lines)
        return lines.intersection(self.lines)

    def at_statement(self, index: int) -> frozenset[SourceLine]:
        """Return the lines with caught errors of a statement of the printed computation."""
        return frozenset(dict(self.lines_of_statements).get(index, ()))
