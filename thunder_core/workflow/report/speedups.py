"""The pages of a benchmark: a plot of the speed-ups in all configurations, and the times in each configuration."""

from __future__ import annotations

from dataclasses import dataclass

from thunder_core.workflow.benchmark.report import BenchmarkCandidate, BenchmarkReport, Interval
from thunder_core.workflow.benchmark.suite import BenchmarkSuite
from thunder_core.workflow.report import number_format
from thunder_core.workflow.report.axes import Axis, Tick, linear
from thunder_core.workflow.report.plots import (
    LETTER_WIDTH,
    MAX_LABEL_LETTERS,
    ROW_HEIGHT,
    WIDTH,
    label_width,
    time_strips,
    token_lines,
)
from thunder_core.workflow.report.render import TEMPLATES, verdict_style

SAME_SPEED = 1.0


@dataclass(frozen=True)
class IntervalRow:
    """A row of the plot: the speed-up of one candidate in one configuration.

    `value`, `low` and `high` are horizontal coordinates of the speed-up and of the ends of its interval.
    """

    label: str
    full_label: str
    text: str
    y: float
    value: float
    low: float
    high: float
    style: str


@dataclass(frozen=True)
class Intervals:
    """Speed-ups on one axis, with a line at 1.

    `even` is the horizontal coordinate of the line, and `text_at` the horizontal coordinate of the texts.
    """

    title: str
    height: float
    even: float
    text_at: float
    rows: tuple[IntervalRow, ...]
    ticks: tuple[Tick, ...]


def render_benchmark(suite: BenchmarkSuite) -> str:
    """Return the measurements as one HTML file that needs neither network nor script."""
    models = {report.configuration.get("model", "") for report in suite.reports}
    return TEMPLATES.get_template("bench.html.j2").render(
        suite=suite,
        model=models.pop() if len(models) == 1 else "",
        machines=list(dict.fromkeys(report.machine for report in suite.reports)),
        speedups=speedup_intervals(suite),
        parts=[
            (configuration_name(report, suite) or "Times", report, time_strips(report)) for report in suite.measured
        ],
        token_plots=[token_lines(generation) for generation in suite.generations],
    )


def render_benchmark_markdown(suite: BenchmarkSuite) -> str:
    """Return the measurements as GitHub-flavoured Markdown: a table for each configuration."""
    parts = [(configuration_name(report, suite), report) for report in suite.reports]
    return TEMPLATES.get_template("bench.md.j2").render(suite=suite, parts=parts)


def configuration_name(report: BenchmarkReport, suite: BenchmarkSuite) -> str:
    """Return the part of a configuration that differs from the others of the suite: `batch 1, seq 128`."""
    configurations = [report.configuration for report in suite.measured]
    differing = {
        key: value
        for key, value in report.configuration.items()
        if any(configuration.get(key) != value for configuration in configurations)
    }
    return ", ".join(value if key == "call" else f"{key} {value}" for key, value in differing.items())


def speedup_intervals(suite: BenchmarkSuite) -> Intervals:
    """Return the speed-ups of every candidate except the first, in every configuration, on one axis."""
    rows = [
        (_label(report, candidate, suite), candidate.speedup, verdict_style(report, candidate))
        for report in suite.measured
        for candidate in report.candidates[1:]
    ]
    texts = [
        f"{number_format.times(s.value)} ({number_format.times(s.low)} to {number_format.times(s.high)})"
        for _, s, _ in rows
    ]
    text_at = WIDTH - max((len(text) for text in texts), default=0) * LETTER_WIDTH
    ends = [SAME_SPEED, *(end for _, speedup, _ in rows for end in (speedup.low, speedup.high))]
    axis = linear(ends, label_width(label for label, _, _ in rows) + 4, text_at - 14, from_zero=False)
    return Intervals(
        title=f"Speed compared with {suite.reports[0].first.name}" if suite.reports else "Speed",
        height=len(rows) * ROW_HEIGHT + 34,
        even=axis(SAME_SPEED),
        text_at=text_at,
        rows=tuple(
            _row(label, speedup, style, text, axis, 14 + number * ROW_HEIGHT)
            for number, ((label, speedup, style), text) in enumerate(zip(rows, texts, strict=True))
        ),
        ticks=axis.ticks(lambda value: f"{value:g}", target_count=4),
    )


def _label(report: BenchmarkReport, candidate: BenchmarkCandidate, suite: BenchmarkSuite) -> str:
    where = configuration_name(report, suite)
    return f"{candidate.name}: {where}" if where else candidate.name


def _row(label: str, speedup: Interval, style: str, text: str, axis: Axis, y: float) -> IntervalRow:
    return IntervalRow(
        label=number_format.shorten(label, MAX_LABEL_LETTERS),
        full_label=label,
        text=text,
        y=y,
        value=axis(speedup.value),
        low=axis(speedup.low),
        high=axis(speedup.high),
        style=style,
    )
