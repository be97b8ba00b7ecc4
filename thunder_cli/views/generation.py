"""Measurements of `generate` as a table: the time to the first token, the rate of further tokens, and the memory.

Lines below the table report generated tokens that differ between candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from thunder_cli.views.quantity import format_bytes, format_rate, format_speedup, rounds_of
from thunder_cli.views.table import fit_table, plain_table, with_title
from thunder_core.foundation.time_format import format_time
from thunder_core.workflow.benchmark import BenchmarkCandidate, BenchmarkReport, GenerationBenchmark
from thunder_core.workflow.benchmark.report import size_in_words

Cell = Callable[[BenchmarkCandidate, GenerationBenchmark], str]


def generation_table(reports: Sequence[GenerationBenchmark], title: str, width: int) -> RenderableType:
    """Return a table with a row for each candidate and batch size, for a console of this width.

    All reports have the same prompt length and number of new tokens, which are part of the title.
    """
    first = reports[0]
    lengths = first.configuration["size"]

    def table_of(columns: Sequence[str]) -> Table:
        table = plain_table("batch", "contender", *columns, text_columns=2)
        for report in reports:
            for candidate in report.candidates:
                label = report.configuration["batch"] if candidate is report.first else ""
                table.add_row(label, candidate.name, *(COLUMNS[column](candidate, report) for column in columns))
        return table

    columns = filled_columns(reports)
    return with_title(
        f"{title}, {lengths}", rounds_of(first), fit_table(table_of, columns, COLUMNS_LEFT_OUT_FIRST, width)
    )


def filled_columns(reports: Sequence[GenerationBenchmark]) -> list[str]:
    """Return the names of the columns that have a value in at least one row."""
    rows = [(candidate, report) for report in reports for candidate in report.candidates]
    return [name for name, cell in COLUMNS.items() if any(cell(*row) for row in rows)]


def tokens_view(reports: Sequence[GenerationBenchmark]) -> Iterator[RenderableType]:
    """Yield a line for each candidate whose generated tokens differ from those of the first candidate."""
    for report in reports:
        for candidate in report.candidates:
            if difference := report.difference(candidate):
                label = size_in_words(report.configuration)
                yield Text(f"{candidate.name}, {label}: {difference}", "bold yellow")


def _speedup(candidate: BenchmarkCandidate, part: BenchmarkReport | None) -> str:
    """Return a candidate's speed-up in one part of `generate`, the first token or the next tokens.

    Returns an empty string for the first candidate, which is the reference, and for a part that was not measured.
    """
    if part is None or candidate.name == part.first.name:
        return ""
    return format_speedup(next(timed.speedup for timed in part.candidates if timed.name == candidate.name))


def _first_token(candidate: BenchmarkCandidate, report: GenerationBenchmark) -> str:
    """Return the median time of a candidate to the first token."""
    candidates = report.first_token.candidates
    return format_time(next(timed.median for timed in candidates if timed.name == candidate.name))


def _rate(candidate: BenchmarkCandidate, report: GenerationBenchmark) -> str:
    """Return the tokens per second of a candidate; an empty string if the rate was not measured."""
    tokens_per_second = report.tokens_per_second(candidate)
    return "" if tokens_per_second is None else format_rate(tokens_per_second)


COLUMNS: Mapping[str, Cell] = {
    "first token": _first_token,
    "first-token speed-up": lambda candidate, report: _speedup(candidate, report.first_token),
    "tokens/s": _rate,
    "tokens/s speed-up": lambda candidate, report: _speedup(candidate, report.next_token),
    "whole call": lambda candidate, _: format_time(candidate.median),
    "peak memory": lambda candidate, _: "" if candidate.peak_bytes is None else format_bytes(candidate.peak_bytes),
}
# Narrow consoles leave out these columns, in this order, until the table fits.
COLUMNS_LEFT_OUT_FIRST = ("whole call", "first-token speed-up", "peak memory")
