"""A benchmark's page has every configuration, and the speed-ups are drawn at their intervals."""

from __future__ import annotations

import csv
import io
import re

import pytest

from tests.benchmark.test_verdict import steady
from tests.report.samples import benchmark
from thunder_core.workflow.benchmark import BenchmarkSuite
from thunder_core.workflow.report import render_benchmark, render_benchmark_markdown, render_csv
from thunder_core.workflow.report.render import VERDICT_STYLES, verdict_style
from thunder_core.workflow.report.speedups import configuration_name, speedup_intervals


def suite(*batches: str) -> BenchmarkSuite:
    """The sample benchmark for each of these batch sizes of one model."""
    configurations = [{"model": "tiny", "batch": batch} for batch in batches]
    reports = tuple(benchmark().model_copy(update={"configuration": configuration}) for configuration in configurations)
    return BenchmarkSuite(thunder="0.1.0", reports=reports)


def test_configurations_are_named_by_their_differences() -> None:
    two = suite("1", "8")
    assert [configuration_name(report, two) for report in two.reports] == ["batch 1", "batch 8"]
    one = suite("1")
    assert configuration_name(one.reports[0], one) == ""


def test_speedups_lie_on_one_axis_with_the_line_of_no_gain() -> None:
    drawn = speedup_intervals(suite("1", "8"))
    assert drawn.title == "Speed compared with eager"
    assert [row.label for row in drawn.rows] == ["optimized: batch 1", "optimized: batch 8"]
    first, second = drawn.rows
    assert drawn.even < first.low <= first.value <= first.high < drawn.text_at
    assert first.value == second.value
    assert second.y > first.y
    assert first.style == "good"


@pytest.mark.parametrize(
    ("ratio", "noise", "style"), [(1.3, 0.02, "good"), (1.0, 0.02, "plain"), (0.7, 0.02, "bad"), (1.3, 0.9, "warning")]
)
def test_a_speed_is_coloured_by_its_verdict(ratio: float, noise: float, style: str) -> None:
    report = steady(ratio, noise=noise)
    assert verdict_style(report, report.candidates[1]) == style
    page = render_benchmark(BenchmarkSuite(thunder="0.1.0", reports=(report,)))
    assert f'<span class="mark {style}">{report.verdict_in_words(report.candidates[1])}</span>' in page


def test_every_verdict_has_a_colour_that_is_drawn() -> None:
    page = render_benchmark(suite("1"))
    assert all(f"svg .{style} {{ fill:" in page for style in VERDICT_STYLES.values())


def test_measurements_as_comma_separated_values() -> None:
    """Every figure has a column, and text that a spreadsheet would evaluate is marked as text."""
    measured = steady(1.3).model_copy(update={"configuration": {"model": "=1+1", "batch": "4", "seq": "8"}})
    eager, ours = csv.DictReader(io.StringIO(render_csv(BenchmarkSuite(thunder="0.1.0", reports=(measured,)))))
    assert (eager["candidate"], ours["candidate"]) == ("eager", "thunder")
    assert (ours["model"], ours["batch"], ours["call"]) == ("'=1+1", "4", "call")
    candidate = measured.candidates[1]
    for column, value in (
        ("median_s", candidate.median),
        ("p99_s", candidate.p99),
        ("speedup_low", candidate.speedup.low),
    ):
        assert float(ours[column]) == value
    assert (eager["verdict"], ours["verdict"]) == ("", "faster")
    assert (eager["peak_bytes"], ours["peak_bytes"]) == ("", str(1 << 20))


def test_a_folder_that_others_are_compared_with_is_no_formula_either() -> None:
    measured = steady(1.3)
    first = measured.first.model_copy(update={"name": "=cmd"})
    report = measured.model_copy(update={"candidates": (first, measured.candidates[1])})
    rows = csv.DictReader(io.StringIO(render_csv(BenchmarkSuite(thunder="0.1.0", reports=(report,)))))
    assert [row["against"] for row in rows] == ["'=cmd"] * 2


def test_measurements_as_markdown() -> None:
    text = render_benchmark_markdown(suite("1", "8"))
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == ["batch 1", "batch 8"]
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert len(tables) == 2
    for table in tables:
        assert len({line.count("|") for line in table.splitlines()}) == 1, table
    assert "| faster than eager |" in text


def test_the_page_is_whole_and_self_contained() -> None:
    page = render_benchmark(suite("1", "8"))
    assert page.count("<svg") == page.count("</svg>") == 3
    assert re.findall(r"<h2>(.*?)</h2>", page) == ["batch 1", "batch 8"]
    assert "Benchmark of tiny" in page
    assert not re.search(r"https?:|<script|<link|<img|src=|url\(|@import", page)
    assert re.findall(r"<h2>(.*?)</h2>", render_benchmark(suite("1"))) == ["Times"]
