"""Measurements at several sizes as one table, and how they compare with an earlier result."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from thunder_cli.views.outcome import benchmark_view, rounds_of, speedup_text
from thunder_cli.views.quantity import seconds, speedup
from thunder_cli.views.table import plain_table, titled
from thunder_core.benchmark import BenchmarkReport, BenchmarkSuite, Comparison


def suite_view(suite: BenchmarkSuite) -> RenderableType:
    """Every candidate at every size."""
    first = suite.reports[0]
    names = first.configuration
    title = f"{names['model']}, {names['recipe']}, {names['dtype']}"
    if len(suite.reports) == 1:
        return benchmark_view(first, title=f"{title}, {size_of(first)}")
    table = plain_table("batch x seq", "candidate", "median", "spread", "speed-up  [95%]", text=2)
    for report in suite.reports:
        for candidate in report.candidates:
            leading = candidate is report.first
            table.add_row(
                size_of(report) if leading else "",
                candidate.name,
                seconds(candidate.median),
                Text(seconds(candidate.spread), "dim"),
                "" if leading else speedup_text(candidate),
            )
    return titled(title, rounds_of(first), table)


def size_of(report: BenchmarkReport) -> str:
    """The size of the inputs: `1 x 128`."""
    return f"{report.configuration['batch']} x {report.configuration['seq']}"


def comparison_view(rows: Sequence[Comparison]) -> RenderableType:
    """Each speed-up beside the baseline's, and the verdict."""
    table = plain_table("batch x seq", "candidate", "speed-up  [95%]", "baseline", "slowdown", "", text=2)
    for row in rows:
        table.add_row(
            f"{row.configuration['batch']} x {row.configuration['seq']}",
            row.candidate,
            speedup(row.speedup),
            speedup(row.baseline),
            f"{row.slowdown:+.1%}",
            Text("too slow", "bold red") if row.too_slow else Text("ok", "green"),
        )
    return titled("Against the baseline", "", table)
