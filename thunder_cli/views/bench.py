"""Measurements at several sizes as one table, and their comparison with an earlier result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from thunder_cli.views.benchmark import (
    COLUMNS,
    COLUMNS_LEFT_OUT_FIRST,
    MIN_WIDE_COLUMNS,
    benchmark_view,
    measured_columns,
)
from thunder_cli.views.generation import generation_table, tokens_view
from thunder_cli.views.quantity import format_speedup, rounds_of
from thunder_cli.views.table import HEAD, VERDICTS, fit_table, plain_table, with_title
from thunder_core.workflow.benchmark import BenchmarkReport, BenchmarkSuite, CandidateComparison, Comparison, Verdict
from thunder_core.workflow.benchmark.report import candidate_in_words, size_in_words
from thunder_core.workflow.benchmark.verdict import in_words


def suite_view(suite: BenchmarkSuite, *, width: int = MIN_WIDE_COLUMNS) -> RenderableType:
    """Return the verdicts, then every candidate at every size, for a console of this width."""
    lines = [*map(verdict_line, verdicts_of(suite)), Text()]
    if suite.generations:
        return Group(*lines, generation_table(suite.generations, _title(suite), width), *tokens_view(suite.generations))
    return Group(*lines, _table(suite, width))


def verdicts_of(suite: BenchmarkSuite) -> list[tuple[str, Verdict, list[str]]]:
    """Return the verdicts on speed in words, each with its sizes."""
    sizes: dict[tuple[str, Verdict], list[str]] = {}
    calls = [report.call for report in suite.measured]
    for report in sorted(suite.measured, key=lambda measured: calls.index(measured.call)):
        for candidate in report.candidates[1:]:
            words = f"{candidate_in_words(candidate.name, report.configuration)}  {report.verdict_in_words(candidate)}"
            where = f"{format_speedup(candidate.speedup)}" if len(suite.reports) == 1 else size_of(report)
            sizes.setdefault((words, report.verdict(candidate)), []).append(where)
    return [(words, verdict, sizes_in_words) for (words, verdict), sizes_in_words in sizes.items()]


def verdict_line(line: tuple[str, Verdict, list[str]]) -> Text:
    """Return the line of one verdict with its sizes."""
    words, verdict, sizes_in_words = line
    return Text.assemble(("Speed", HEAD), "  ", (words, VERDICTS[verdict]), f"  {', '.join(sizes_in_words)}")


def _title(suite: BenchmarkSuite) -> str:
    names = suite.reports[0].configuration
    return f"{names['model']}, {names['recipe']}, {names['dtype']}"


def _table(suite: BenchmarkSuite, width: int) -> RenderableType:
    first, title = suite.reports[0], _title(suite)
    if len(suite.reports) == 1:
        return benchmark_view(first, title=f"{title}, {size_of(first)}", width=width)

    def table_of(columns: Sequence[str]) -> Table:
        table = plain_table(
            heading([report.configuration for report in suite.reports]), "contender", *columns, text_columns=2
        )
        table.columns[-1].justify = "left"
        for report in suite.reports:
            for candidate in report.candidates:
                label = size_of(report) if candidate is report.first else ""
                table.add_row(label, candidate.name, *(COLUMNS[column](candidate, report) for column in columns))
        return table

    return with_title(
        title, rounds_of(first), fit_table(table_of, measured_columns(suite.reports), COLUMNS_LEFT_OUT_FIRST, width)
    )


def size_of(report: BenchmarkReport) -> str:
    """Return the size of the inputs: `1 x 128`."""
    return size_in_words(report.configuration)


def heading(configurations: Sequence[Mapping[str, str]]) -> str:
    """Return the name of the column with the sizes of the inputs."""
    return "batch x input" if any("size" in configuration for configuration in configurations) else "batch x seq"


def comparison_view(rows: Sequence[Comparison]) -> RenderableType:
    """Return a table of each measurement: its speed-up, the baseline's speed-up, and the verdict."""
    table = plain_table(
        heading([row.configuration for row in rows]),
        "contender",
        "speed-up  [95%]",
        "baseline",
        "slowdown",
        "",
        text_columns=2,
    )
    for row in rows:
        table.add_row(
            size_in_words(row.configuration),
            candidate_in_words(row.candidate, row.configuration),
            format_speedup(row.speedup),
            format_speedup(row.baseline),
            f"{row.slowdown:+.1%}",
            Text("too slow", "bold red") if row.too_slow else Text("ok", "green"),
        )
    return with_title("Comparison with the baseline", "", table)


def contrast_view(rows: Sequence[CandidateComparison], first: str, second: str) -> RenderableType:
    """Return the verdicts on the second of two results, then the speed-ups in both, and their ratio."""
    table = plain_table(
        heading([row.configuration for row in rows]),
        "contender",
        first,
        second,
        "ratio  [95%]",
        "verdict",
        text_columns=2,
    )
    table.columns[-1].justify = "left"
    for row in rows:
        table.add_row(
            size_in_words(row.configuration),
            candidate_in_words(row.candidate, row.configuration),
            f"{row.first.value:.2f}x",
            f"{row.second.value:.2f}x",
            format_speedup(row.ratio),
            Text(row.verdict, VERDICTS[row.verdict]),
        )
    lines = dict.fromkeys((f"{second}  {in_words(row.verdict, first, row.rounds)}", row.verdict) for row in rows)
    verdicts = [Text.assemble(("Speed", HEAD), "  ", (words, VERDICTS[verdict])) for words, verdict in lines]
    detail = "speed-ups over the first contender, which both results share"
    return Group(*verdicts, Text(), with_title(f"{second} against {first}", detail, table))
