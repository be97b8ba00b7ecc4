"""Two results are compared by their speed-ups. The rounds of each result are resampled separately."""

from __future__ import annotations

import pytest

from tests.benchmark.test_verdict import steady
from thunder_core.foundation.errors import BadOption
from thunder_core.workflow.benchmark import BenchmarkReport, BenchmarkSuite, contrast_suites


def suite(*reports: BenchmarkReport, **changes: object) -> BenchmarkSuite:
    """A suite of measurements, each with the given changes."""
    return BenchmarkSuite(thunder="0.1.0", reports=tuple(report.model_copy(update=changes) for report in reports))


def report_named(recipe: str, **sizes: str) -> dict[str, str]:
    return {"model": "tiny", "recipe": recipe, "batch": "1", "seq": "8", **sizes}


@pytest.mark.parametrize(("second", "verdict"), [(2.6, "faster"), (0.65, "slower"), (1.3, "not distinguishable")])
def test_second_suite_is_faster_slower_or_not_distinguishable(second: float, verdict: str) -> None:
    (row,) = contrast_suites(
        suite(steady(1.3), configuration=report_named("a")), suite(steady(second), configuration=report_named("b"))
    )
    assert (row.candidate, row.verdict, row.rounds) == ("thunder", verdict, 30)
    assert row.ratio.low <= row.ratio.value <= row.ratio.high
    assert row.ratio.value == pytest.approx(second / 1.3, rel=0.03)
    assert row.configuration == {"batch": "1", "seq": "8"}


def test_the_interval_is_about_that_of_two_independent_measurements() -> None:
    """For small intervals, its width is the root of the sum of the squares of both widths."""
    first, second = steady(1.3), steady(1.3, rounds=40)
    (row,) = contrast_suites(suite(first), suite(second))
    widths = [
        (candidate.speedup.high - candidate.speedup.low) / candidate.speedup.value
        for candidate in (first.candidates[1], second.candidates[1])
    ]
    assert (row.ratio.high - row.ratio.low) / row.ratio.value == pytest.approx(
        sum(w**2 for w in widths) ** 0.5, rel=0.3
    )


def test_sizes_of_a_single_suite_are_left_out() -> None:
    both = suite(
        steady(1.3).model_copy(update={"configuration": report_named("a")}),
        steady(1.5).model_copy(update={"configuration": report_named("a", seq="16")}),
    )
    rows = contrast_suites(both, suite(steady(1.3), configuration=report_named("b", seq="16")))
    assert [row.configuration["seq"] for row in rows] == ["16"]
    with pytest.raises(BadOption, match=r"nothing in common: .* seq=8.* seq=32"):
        contrast_suites(both, suite(steady(1.3), configuration=report_named("b", seq="32")))


def test_results_of_two_machines_are_refused() -> None:
    with pytest.raises(BadOption, match="was measured on m"):
        contrast_suites(suite(steady(1.3)), suite(steady(1.3), machine="another"))
