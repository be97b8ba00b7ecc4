"""Measurements of `generate` as a table: time to first token, token rate, memory, and tokens that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from thunder_cli.views.quantity import rate, rounds_of, size, speedup
from thunder_cli.views.table import fitting, plain_table, with_title
from thunder_core.foundation.time_format import format_time
from thunder_core.workflow.benchmark import BenchmarkCandidate, BenchmarkReport, GenerationBenchmark
from thunder_core.workflow.benchmark.report import size_in_words

Cell = Callable[[BenchmarkCandidate, GenerationBenchmark], str]


def generation_table(reports: Sequence[GenerationBenchmark], title: str, width: int) -> RenderableType:
    """Return a table of every contender at every size, for a console of this width; all sizes have the same lengths."""
    first = reports[0]
    lengths = first.configuration["size"]

    def table_of(columns: Sequence[str]) -> Table:
        table = plain_table("batch", "candidate", *columns, text_columns=2)
        for report in reports:
            for candidate in report.candidates:
                label = report.configuration["batch"] if candidate is report.first else ""
                table.add_row(label, candidate.name, *(COLUMNS[column](candidate, report) for column in columns))
        return table

    return with_title(f"{title}, {lengths}", rounds_of(first), fitting(table_of, columns_of(reports), SPARE, width))


def columns_of(reports: Sequence[GenerationBenchmark]) -> list[str]:
    """Return the columns that are not empty."""
    filled = [(candidate, report) for report in reports for candidate in report.candidates]
    return [name for name, cell in COLUMNS.items() if any(cell(*column) for column in filled)]


def tokens_view(reports: Sequence[GenerationBenchmark]) -> Iterator[RenderableType]:
    """Yield a line for each contender whose tokens differ from the first contender's."""
    for report in reports:
        for candidate in report.candidates:
            if difference := report.difference(candidate):
                label = size_in_words(report.configuration)
                yield Text(f"{candidate.name}, {label}: {difference}", "bold yellow")


def _ratio(candidate: BenchmarkCandidate, part: BenchmarkReport | None) -> str:
    """Return the speed-up of a candidate in a part of the calls; empty for the first candidate or a missing part."""
    if part is None or candidate.name == part.first.name:
        return ""
    return speedup(next(timed.speedup for timed in part.candidates if timed.name == candidate.name))


def _first_token(candidate: BenchmarkCandidate, report: GenerationBenchmark) -> str:
    candidates = report.first_token.candidates
    return format_time(next(timed.median for timed in candidates if timed.name == candidate.name))


def _rate(candidate: BenchmarkCandidate, report: GenerationBenchmark) -> str:
    tokens_per_second = report.tokens_per_second(candidate)
    return "" if tokens_per_second is None else rate(tokens_per_second)


COLUMNS: Mapping[str, Cell] = {
    "first token": _first_token,
    "first-token speed-up": lambda candidate, report: _ratio(candidate, report.first_token),
    "tokens/s": _rate,
    "tokens/s speed-up": lambda candidate, report: _ratio(candidate, report.next_token),
    "whole call": lambda candidate, _: format_time(candidate.median),
    "peak memory": lambda candidate, _: "" if candidate.peak_bytes is None else size(candidate.peak_bytes),
}
SPARE = (
    "whole call",
    "first-token speed-up",
    "peak memory",
)  # the columns that narrow consoles leave out, in this order
