"""A speed-up is reported only as far as the rounds show it, and a gate passes only if its speed-up is shown."""

from __future__ import annotations

import math
import random

import pytest

from thunder_core.foundation.errors import BadOption, SpeedupMissed
from thunder_core.workflow.benchmark import (
    BenchmarkReport,
    BenchmarkSuite,
    Interval,
    check_speedup_factor,
    require_speedup,
)
from thunder_core.workflow.benchmark.report import BenchmarkCandidate
from thunder_core.workflow.benchmark.statistics import describe_candidate
from thunder_core.workflow.benchmark.verdict import in_words, verdict_of


def report_of(eager: list[float], ours: list[float]) -> BenchmarkReport:
    """A measurement of eager and of the optimized model."""
    described = describe_candidate("eager", eager, eager, None), describe_candidate("thunder", ours, eager, 1 << 20)
    return BenchmarkReport(
        machine="m",
        device="cpu",
        configuration={"batch": "4", "seq": "8"},
        runs=len(eager),
        warmup=0,
        candidates=described,
    )


def steady(ratio: float, rounds: int = 30, noise: float = 0.02) -> BenchmarkReport:
    """A report in which the optimized model is `ratio` times as fast, with noise relative to each time."""
    draw = random.Random(3)
    eager, ours = ([scale * abs(1 + noise * draw.gauss(0, 1)) for _ in range(rounds)] for scale in (1.0, 1.0 / ratio))
    return report_of(eager, ours)


def interval(value: float, low: float, high: float) -> Interval:
    return Interval(value=value, low=low, high=high)


QUIET = report_of([1.0] * 30, [1.0] * 30).first
LOUD = report_of([0.1 * n for n in range(1, 31)], [1.0] * 30).first
SAID = {
    "0.67x with an interval that holds 1": (interval(0.67, 0.60, 1.02), 30, QUIET, "not distinguishable"),
    "2.93x of anything": (interval(2.93, 0.12, 89.92), 30, QUIET, "unstable"),
    "a spread above the median": (interval(0.92, 0.90, 0.94), 30, LOUD, "unstable"),
    "surely slower": (interval(0.67, 0.6, 0.7), 30, QUIET, "slower"),
    "surely faster": (interval(1.31, 1.28, 1.34), 30, QUIET, "faster"),
    "much faster, if not known how much": (interval(10.0, 8.0, 14.0), 30, QUIET, "faster"),
    "five rounds": (interval(2.0, 2.0, 2.0), 5, QUIET, "not distinguishable"),
    "six rounds": (interval(2.0, 2.0, 2.0), 6, QUIET, "faster"),
    "no number": (interval(math.nan, math.nan, math.nan), 30, QUIET, "unstable"),
    "endless": (interval(math.inf, 1.0, math.inf), 30, QUIET, "unstable"),
}


@pytest.mark.parametrize("case", SAID)
def test_verdict_follows_from_the_measurement(case: str) -> None:
    speedup, rounds, candidate, verdict = SAID[case]
    assert verdict_of(speedup, rounds, QUIET, candidate) == verdict
    assert verdict_of(speedup, rounds, candidate, QUIET) == verdict


def test_the_sign_test_needs_six_rounds() -> None:
    assert 2 / 2**5 > 0.05 > 2 / 2**6


@pytest.mark.parametrize(("ratio", "verdict"), [(1.3, "faster"), (0.7, "slower"), (1.0, "not distinguishable")])
def test_the_verdict_is_in_the_data_and_in_words(ratio: float, verdict: str) -> None:
    report = steady(ratio)
    assert report.verdicts == {"thunder": verdict}
    assert f'"verdicts":{{"thunder":"{verdict}"}}' in report.model_dump_json()
    assert verdict.split(maxsplit=1)[0] in report.verdict_in_words(report.candidates[1])
    assert "too few" in in_words("not distinguishable", "eager", 5)


def test_equal_candidates_are_seldom_distinguished() -> None:
    """The interval contains the true ratio in about 95 of 100 measurements, and with this seed in 96."""
    draw = random.Random(0)
    verdicts = [report_of(*([draw.gauss(1, 0.05) for _ in range(30)] for _ in "ab")) for _ in range(100)]
    assert sum(report.verdicts["thunder"] == "not distinguishable" for report in verdicts) >= 90


def test_percentiles_and_throughput_are_computed_from_the_times() -> None:
    report = report_of([0.01 * n for n in range(1, 102)], [0.5] * 101)
    eager, ours = report.candidates
    assert (eager.median, eager.p90, eager.p99) == pytest.approx((0.51, 0.91, 1.0))
    assert (ours.p90, ours.p99) == (0.5, 0.5)
    assert report.throughput == pytest.approx({"eager": 4 / 0.51, "thunder": 8.0})
    once = BenchmarkCandidate.model_validate(eager.model_dump() | {"seconds": (1.0,), "median": 1.0})
    assert once.p99 == 1.0


def test_computed_fields_are_written_and_computed_again_when_read() -> None:
    report = steady(1.3)
    data = report.model_dump()
    assert data["candidates"][0]["p99"] == report.first.p99
    data["verdicts"], data["candidates"][1]["p90"] = {"thunder": "slower"}, 99.0
    assert BenchmarkReport.model_validate(data) == report
    assert BenchmarkReport.model_validate(data).verdicts == {"thunder": "faster"}
    without = {key: value for key, value in data.items() if key not in {"verdicts", "throughput"}}
    assert BenchmarkReport.model_validate(without) == report  # earlier versions wrote no computed fields


def suite_of(*reports: BenchmarkReport) -> BenchmarkSuite:
    return BenchmarkSuite(thunder="0.1.0", reports=reports)


@pytest.mark.parametrize(
    ("report", "least", "holds"),
    [
        (steady(1.3), 1.1, True),
        (steady(1.3), 1.299, False),  # the median passes, but the interval does not
        (steady(1.05), 1.1, False),
        (steady(0.9), 0.8, True),
        (steady(1.3, rounds=5), 1.1, False),
        (report_of([0.1 * n for n in range(1, 31)], [0.01 * n for n in range(1, 31)]), 1.1, False),  # unstable
    ],
)
def test_a_gate_passes_only_if_the_speedup_is_shown(report: BenchmarkReport, least: float, holds: bool) -> None:
    if holds:
        require_speedup(report, least, "thunder")
        return
    with pytest.raises(SpeedupMissed) as caught:
        require_speedup(suite_of(steady(2.0), report), least, "thunder")
    assert (caught.value.code, caught.value.status) == ("TH0502", 5)
    assert f"a speed-up of {least:g} is required, but not shown by 1 of 2 measurements: batch 4, seq 8" in str(
        caught.value
    )
    assert caught.value.report == suite_of(steady(2.0), report)


@pytest.mark.parametrize(("least", "runs"), [(0.0, 30), (-1.0, 30), (math.nan, 30), (math.inf, 30), (1.1, 5)])
def test_impossible_gates_are_refused(least: float, runs: int) -> None:
    with pytest.raises(BadOption, match="--runs is 5" if runs == 5 else "--require-speedup is"):
        check_speedup_factor(least, runs)
