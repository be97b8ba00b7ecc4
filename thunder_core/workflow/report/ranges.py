"""The rows of a report on ranges of sizes: the result at each size, and the constraints of the programs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from thunder_core.foundation.options.symbolic_arguments import ranges_in_words
from thunder_core.tracing.ir.requirement import StatedConstraint
from thunder_core.workflow.benchmark.report import BenchmarkCandidate, BenchmarkReport, size_in_words
from thunder_core.workflow.report.contents import ConstraintFacts, Report
from thunder_core.workflow.validation.report import PointReport

KEYWORD = re.compile(r"kwargs\['(\w+)'\]")  # of a call, as its author writes it: by the name alone
LINE = re.compile(r"^needed at (?:.*/)?(?P<place>[^/]*)$")


@dataclass(frozen=True)
class Point:
    """One size of a range: how near the outputs are there, and how fast the calls, as far as that was measured."""

    size: str
    validation: PointReport | None
    benchmark: BenchmarkReport | None

    @property
    def candidate(self) -> BenchmarkCandidate | None:
        """The candidate that was measured beside eager."""
        return self.benchmark.candidates[1] if self.benchmark and len(self.benchmark.candidates) > 1 else None


@dataclass(frozen=True)
class ConstraintRow:
    """A constraint that programs have in common: their numbers, what it is about, Python, and who needed it."""

    programs: str
    number: str
    condition: str
    needed: str
    is_given: bool
    """Whether it is the range that was given, and no more."""


def points_of(report: Report) -> list[Point]:
    """Each size at which was validated or measured, the traced one first; none where no range was given."""
    if not report.dynamic:
        return []
    validated = {point.size: point for point in (report.validation.points if report.validation else ())}
    reports = (*((report.benchmark,) if report.benchmark else ()), *report.points)
    measured = {size_in_words(one.configuration): one for one in reports}
    return [Point(size, validated.get(size), measured.get(size)) for size in dict.fromkeys((*validated, *measured))]


def constraints_of(report: Report) -> list[ConstraintRow]:
    """The constraints of a report's programs."""
    return constraint_rows((one.program, one) for one in report.constraints)


def constraint_rows(constraints: Iterable[tuple[int, StatedConstraint | ConstraintFacts]]) -> list[ConstraintRow]:
    """The constraints of programs, each once for all that have it, those that programs decided by first."""
    programs: dict[tuple[str, str, str], list[int]] = {}
    for program, one in constraints:
        number = KEYWORD.sub(r"\1", one.number)
        names = f" with {KEYWORD.sub(chr(92) + '1', one.names)}" if one.names else ""
        programs.setdefault((number, f"{one.condition}{names}", one.needed), []).append(program)
    rows = [
        ConstraintRow(", ".join(map(str, found)), number, condition, _place(needed), "needed" not in needed)
        for (number, condition, needed), found in programs.items()
    ]
    return sorted(rows, key=lambda row: row.is_given)


def _place(needed: str) -> str:
    """The line or the party that needed a constraint, without the folders of a file."""
    line = LINE.match(needed)
    return line["place"] if line else needed.removeprefix("needed by ")


def served(report: Report) -> str:
    """The ranges and the number of programs that serve them, in words; empty without ranges."""
    if not report.dynamic:
        return ""
    count = report.programs or len({one.program for one in report.constraints})
    programs = "one program" if count == 1 else f"{count} programs"
    probed = f"; {report.probed}" if report.probed else ""
    return f"{ranges_in_words(report.dynamic)}, served by {programs}{probed}"
