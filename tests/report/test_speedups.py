"""A benchmark's page holds every configuration, and the speed-ups lie where their intervals say."""

from __future__ import annotations

import re

import pytest

from tests.report.samples import benchmark
from thunder_core.benchmark import BenchmarkSuite, Interval
from thunder_core.report import render_benchmark
from thunder_core.report.render import mood_of
from thunder_core.report.speedups import configuration_name, speedup_intervals


def suite(*batches: str) -> BenchmarkSuite:
    """The sample benchmark for each of these batch sizes of one model."""
    configurations = [{"model": "tiny", "batch": batch} for batch in batches]
    reports = tuple(benchmark().model_copy(update={"configuration": one}) for one in configurations)
    return BenchmarkSuite(thunder="0.1.0", reports=reports)


def test_configurations_are_called_by_what_sets_them_apart() -> None:
    two = suite("1", "8")
    assert [configuration_name(report, two) for report in two.reports] == ["batch 1", "batch 8"]
    one = suite("1")
    assert configuration_name(one.reports[0], one) == ""


def test_speedups_lie_on_one_axis_with_the_line_of_no_gain() -> None:
    drawn = speedup_intervals(suite("1", "8"))
    assert drawn.title == "Speed against eager"
    assert [row.label for row in drawn.rows] == ["optimized: batch 1", "optimized: batch 8"]
    first, second = drawn.rows
    assert drawn.even < first.low <= first.value <= first.high < drawn.text_at
    assert first.value == second.value
    assert second.y > first.y
    assert first.mood == "good"


@pytest.mark.parametrize(("low", "high", "mood"), [(1.01, 1.2, "good"), (0.9, 1.1, "plain"), (0.8, 0.99, "bad")])
def test_only_what_is_sure_is_coloured(low: float, high: float, mood: str) -> None:
    assert mood_of(Interval(value=(low + high) / 2, low=low, high=high)) == mood


def test_the_page_is_whole_and_self_contained() -> None:
    page = render_benchmark(suite("1", "8"))
    assert page.count("<svg") == page.count("</svg>") == 3
    assert re.findall(r"<h2>(.*?)</h2>", page) == ["batch 1", "batch 8"]
    assert "Benchmark of tiny" in page
    assert not re.search(r"https?:|<script|<link|<img|src=|url\(|@import", page)
    assert re.findall(r"<h2>(.*?)</h2>", render_benchmark(suite("1"))) == ["Times"]
