"""Measurements as a plot: the median of each candidate at each size with quartiles, or the time of each token."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from thunder_cli.views.bench import heading, size_of
from thunder_core.foundation.printable import printable
from thunder_core.foundation.time_format import format_time
from thunder_core.workflow.benchmark import BenchmarkCandidate, BenchmarkReport, BenchmarkSuite
from thunder_core.workflow.report import render_benchmark

COLOURS = ("#8d99ae", "#e07a2f", "#3a6ea5", "#6a994e")
BARS_SHARE = 0.8  # the bars' share of the space between two sizes
MILLI = 1e3


def draw_suite(suite: BenchmarkSuite, file: Path) -> None:
    """Save a plot of the suite. The suffix of `file` selects the format: .html is a page, any other an image."""
    if file.suffix.lower() == ".html":
        file.write_text(render_benchmark(suite), encoding="utf-8")
        return
    draw = draw_tokens if suite.generations else draw_medians
    # Do not parse dollar signs in names as formulas. In SVG files, keep text as text.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "thunder", "text.parse_math": False}):
        draw(suite).savefig(file, dpi=160)


def draw_tokens(suite: BenchmarkSuite) -> Figure:
    """Plot the time of each token after the first as lines, with one plot for each batch size."""
    reports = suite.generations
    figure = Figure(figsize=(5.2 * len(reports) + 0.8, 3.8), layout="constrained")
    for report, axes in zip(reports, figure.subplots(1, len(reports), squeeze=False)[0], strict=True):
        for number, text in enumerate(report.texts):
            first, *following = text.seconds
            label = f"{printable(text.name)} (first token: {format_time(first)})"
            positions = range(2, len(text.seconds) + 1)
            colour = COLOURS[number % len(COLOURS)]
            axes.plot(positions, [value * MILLI for value in following], label=label, color=colour, linewidth=1.3)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("token")
        axes.set_ylabel("median time per token, ms")
        axes.set_title(printable(_title(report)), fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    return figure


def _title(report: BenchmarkReport) -> str:
    names = report.configuration
    return f"{names['model']}, {names['recipe']}, {size_of(report)}\n{report.machine}"


def draw_medians(suite: BenchmarkSuite) -> Figure:
    """Plot the median time of each candidate at each size as bars, with quartiles."""
    names = [candidate.name for candidate in suite.reports[0].candidates]
    figure = Figure(figsize=(max(6.0, 1.6 * len(suite.reports) + 2), 3.8), layout="constrained")
    axes = figure.subplots()
    width = BARS_SHARE / len(names)
    for number, name in enumerate(names):
        candidates_by_size = [next(c for c in report.candidates if c.name == name) for report in suite.reports]
        positions = [index + (number - (len(names) - 1) / 2) * width for index in range(len(candidates_by_size))]
        bars = axes.bar(
            positions,
            [candidate.median * MILLI for candidate in candidates_by_size],
            width * 0.94,
            yerr=_error_bar_lengths(candidates_by_size),
            label=printable(name),
            color=COLOURS[number % len(COLOURS)],
            error_kw={"elinewidth": 1, "capsize": 2, "ecolor": "#444"},
        )
        if number:
            pairs = zip(suite.reports, candidates_by_size, strict=True)
            axes.bar_label(bars, [_label(report, candidate) for report, candidate in pairs], padding=2, fontsize=8)
    axes.set_xticks(range(len(suite.reports)), [size_of(report) for report in suite.reports])
    axes.set_xlabel(heading([report.configuration for report in suite.reports]).replace("seq", "sequence length"))
    axes.set_ylabel("median and quartiles, ms")
    first = suite.reports[0]
    title = f"{first.configuration['model']}, {first.configuration['recipe']}\n{first.machine}"
    axes.set_title(printable(title), fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def _label(report: BenchmarkReport, candidate: BenchmarkCandidate) -> str:
    """Return the speed-up, with the verdict if it is not `faster`."""
    verdict = report.verdict(candidate)
    return f"{candidate.speedup.value:.2f}x{'' if verdict == 'faster' else f'{chr(10)}{verdict}'}"


def _error_bar_lengths(candidates: list[BenchmarkCandidate]) -> list[list[float]]:
    below = [(candidate.median - candidate.first_quartile) * MILLI for candidate in candidates]
    above = [(candidate.third_quartile - candidate.median) * MILLI for candidate in candidates]
    return [below, above]
