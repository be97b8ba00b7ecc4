"""The measured times of candidates as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from thunder_cli.views.quantity import (
    format_bytes,
    format_rate,
    format_speedup,
    rounds_of,
)
from thunder_cli.views.table import (
    DIM,
    VERDICTS,
    fit_table,
    plain_table,
    with_title,
)
from thunder_core.foundation.time_format import format_time
from thunder_core.workflow.benchmark import BenchmarkCandidate, BenchmarkReport

MIN_WIDE_COLUMNS = 100  # columns of the console, unless a caller passes the width


def benchmark_view(
    benchmark: BenchmarkReport, *, title: str = "Benchmark", width: int = MIN_WIDE_COLUMNS
) -> RenderableType:
    """Return a table of each candidate: its times, its speed-up and the verdict, for a console of this width."""

    def table_of(columns: Sequence[str]) -> Table:
        table = plain_table("contender", *columns)
        for candidate in benchmark.candidates:
            table.add_row(candidate.name, *(COLUMNS[column](candidate, benchmark) for column in columns))
        table.columns[-1].justify = "left"
        return table

    return with_title(
        title, rounds_of(benchmark), fit_table(table_of, measured_columns([benchmark]), COLUMNS_LEFT_OUT_FIRST, width)
    )


def measured_columns(reports: Sequence[BenchmarkReport]) -> list[str]:
    """Return the columns of the table of candidates, without `peak memory` if no candidate's memory was measured."""
    has_memory = any(candidate.peak_bytes is not None for report in reports for candidate in report.candidates)
    return [name for name in COLUMNS if has_memory or name != "peak memory"]


def _comparison_cell(candidate: BenchmarkCandidate, benchmark: BenchmarkReport, text: str, style: str = "") -> Text:
    """Return the text for a candidate's cell; the cell of the first candidate, the baseline, stays empty."""
    return Text("" if candidate is benchmark.first else text, style)


COLUMNS: Mapping[str, Callable[[BenchmarkCandidate, BenchmarkReport], Text]] = {
    "median": lambda candidate, _: Text(format_time(candidate.median)),
    "spread": lambda candidate, _: Text(format_time(candidate.spread), DIM),
    "p90": lambda candidate, _: Text(format_time(candidate.p90)),
    "p99": lambda candidate, _: Text(format_time(candidate.p99)),
    "samples/s": lambda candidate, report: Text(format_rate(report.throughput[candidate.name])),
    "peak memory": lambda candidate, _: Text(
        "" if candidate.peak_bytes is None else format_bytes(candidate.peak_bytes)
    ),
    "speed-up  [95%]": lambda candidate, report: _comparison_cell(candidate, report, format_speedup(candidate.speedup)),
    "verdict": lambda candidate, report: _comparison_cell(
        candidate, report, report.verdict(candidate), VERDICTS[report.verdict(candidate)]
    ),
}
# Narrow consoles leave out these columns, in this order, until the table fits.
COLUMNS_LEFT_OUT_FIRST = ("p90", "samples/s", "spread", "p99", "peak memory")
