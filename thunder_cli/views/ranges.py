"""Ranges of sizes as tables: the measured sizes, and the constraints of the programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from thunder_cli.views.quantity import count_noun, format_magnitude, format_speedup
from thunder_cli.views.table import BAD, DIM, GOOD, VERDICTS, fit_table, plain_table, with_title
from thunder_core.foundation.time_format import format_time
from thunder_core.workflow.report import Report
from thunder_core.workflow.report.ranges import ConstraintRow, RangePoint, constraints_of, points_of, served_in_words

# Narrow consoles leave out these columns, in this order, until the table fits.
COLUMNS_LEFT_OUT_FIRST = ("eager's own", "eager", "thunder")


def ranges_view(report: Report, *, width: int) -> Iterator[RenderableType]:
    """Yield the measured sizes and the constraints, if there are ranges."""
    if report.dynamic:
        yield with_title("Ranges", served_in_words(report), _point_table(points_of(report), width))
        yield constraints_view(constraints_of(report))


def _point_table(points: Sequence[RangePoint], width: int) -> Table:
    column_names = [name for name, (part, _) in COLUMNS.items() if any(getattr(point, part) for point in points)]

    def table_of(columns: Sequence[str]) -> Table:
        table = plain_table("batch x seq", *columns)
        table.columns[-1].justify = "left"
        for point in points:
            table.add_row(point.size, *(_cell(point, column) for column in columns))
        return table

    return fit_table(table_of, column_names, COLUMNS_LEFT_OUT_FIRST, width)


def _cell(point: RangePoint, column: str) -> Text:
    part, cell = COLUMNS[column]
    return cell(point) if getattr(point, part) is not None else Text("")


def _median(point: RangePoint, index: int) -> Text:
    assert point.benchmark is not None
    return Text(format_time(point.benchmark.candidates[index].median), "" if index else DIM)


def _verdict(point: RangePoint) -> Text:
    assert point.benchmark is not None and point.candidate is not None
    verdict = point.benchmark.verdict(point.candidate)
    return Text(verdict, VERDICTS[verdict])


def _pass_mark(point: RangePoint) -> Text:
    assert point.validation is not None
    return Text("ok", GOOD) if point.validation.passed else Text("out of tolerance", BAD)


def _error(point: RangePoint) -> Text:
    assert point.validation is not None
    return Text(format_magnitude(point.validation.optimized))


def _eager_error(point: RangePoint) -> Text:
    assert point.validation is not None
    return Text(format_magnitude(point.validation.eager), DIM)


def _speedup(point: RangePoint) -> Text:
    assert point.candidate is not None
    return Text(format_speedup(point.candidate.speedup))


# For each column: the field of a `RangePoint` that the column needs, and the function that builds its cell.
COLUMNS: Mapping[str, tuple[str, Callable[[RangePoint], Text]]] = {
    "max error": ("validation", _error),
    "eager's own": ("validation", _eager_error),
    "": ("validation", _pass_mark),
    "eager": ("benchmark", lambda point: _median(point, 0)),
    "thunder": ("benchmark", lambda point: _median(point, 1)),
    "speed-up  [95%]": ("candidate", _speedup),
    "verdict": ("candidate", _verdict),
}


def constraints_view(rows: Sequence[ConstraintRow]) -> RenderableType:
    """Return the constraints that programs added, with their sources, and the number of constraints from ranges."""
    added_rows = [row for row in rows if not row.is_given]
    table = plain_table("program", "size", "constraint", "needed by", text_columns=2)
    for index in (1, 2, 3):
        table.columns[index].justify, table.columns[index].no_wrap = "left", False
    for row in added_rows:
        table.add_row(row.programs, row.number, row.condition, Text(row.needed, DIM))
    count_from_ranges = len(rows) - len(added_rows)
    note = Text(f"and {count_noun(count_from_ranges, 'constraint')} from the specified ranges", DIM)
    body = Group(*([table] if added_rows else []), *([note] if count_from_ranges else []))
    return with_title("Constraints", "the checks of sizes in the programs' prologues", body)
