"""The rows of a report on ranges of sizes: the result at each size, and the constraints of the programs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from thunder_core.foundation.options.symbolic_arguments import ranges_in_words
from thunder_core.tracing.ir.requirement import StatedConstraint
from thunder_core.workflow.benchmark.report import BenchmarkCandidate, BenchmarkReport, size_in_words
from thunder_core.workflow.report.contents import ConstraintFacts, Report
from thunder_core.workflow.validation.report import SizeReport

KEYWORD = re.compile(r"kwargs\['(\w+)'\]")  # keyword arguments are shown by name only
LINE = re.compile(r"^needed at (?:[^,]*/)?(?P<place>.*)$")


@dataclass(frozen=True)
class RangePoint:
    """One size of a range: the errors of its outputs, and the speed of its calls; None if not measured."""

    size: str
    validation: SizeReport | None
    benchmark: BenchmarkReport | None

    @property
    def candidate(self) -> BenchmarkCandidate | None:
        """The candidate that was compared with eager; None if there is none."""
        return self.benchmark.candidates[1] if self.benchmark and len(self.benchmark.candidates) > 1 else None


@dataclass(frozen=True)
class ConstraintRow:
    """A constraint of one or more programs: the programs' indices, the size or number, the condition and the origin."""

    programs: str
    number: str
    condition: str
    needed: str
    is_given: bool
    """Whether the constraint is only the range from the options."""


def points_of(report: Report) -> list[RangePoint]:
    """Return each size that was validated or measured, the traced size first; empty without ranges."""
    if not report.dynamic:
        return []
    validated = {point.size: point for point in (report.validation.sizes if report.validation else ())}
    reports = (*((report.benchmark,) if report.benchmark else ()), *report.further_benchmarks)
    measured = {size_in_words(benchmark.configuration): benchmark for benchmark in reports}
    return [
        RangePoint(size, validated.get(size), measured.get(size)) for size in dict.fromkeys((*validated, *measured))
    ]


def constraints_of(report: Report) -> list[ConstraintRow]:
    """Return the constraints of a report's programs."""
    return constraint_rows((constraint.program, constraint) for constraint in report.constraints)


def constraint_rows(constraints: Iterable[tuple[int, StatedConstraint | ConstraintFacts]]) -> list[ConstraintRow]:
    """Return each constraint once, with its programs; constraints that are not from the options come first."""
    programs: dict[tuple[str, str, str], list[int]] = {}
    for program, facts in constraints:
        number = KEYWORD.sub(r"\1", facts.number)
        names = f" with {KEYWORD.sub(chr(92) + '1', facts.names)}" if facts.names else ""
        programs.setdefault((number, f"{facts.condition}{names}", facts.needed), []).append(program)
    rows = [
        ConstraintRow(", ".join(map(str, numbers)), number, condition, _short_origin(needed), "needed" not in needed)
        for (number, condition, needed), numbers in programs.items()
    ]
    return sorted(rows, key=lambda row: row.is_given)


def _short_origin(needed: str) -> str:
    """Return the origin of a constraint, without the folders of a file."""
    line = LINE.match(needed)
    return line["place"] if line else needed.removeprefix("needed by ")


def served_in_words(report: Report) -> str:
    """Return the ranges and the number of programs in words; empty without ranges."""
    if not report.dynamic:
        return ""
    count = report.programs or len({constraint.program for constraint in report.constraints})
    programs = "one program" if count == 1 else f"{count} programs"
    tried = f"; {report.tried_sizes}" if report.tried_sizes else ""
    return f"{ranges_in_words(report.dynamic)}, served by {programs}{tried}"
