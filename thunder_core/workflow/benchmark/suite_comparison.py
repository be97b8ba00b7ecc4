"""Compare two results of benchmarks: the ratio of their speed-ups.

As with a baseline, the speed-up of each candidate over the first candidate is compared. The two results were measured
separately, so their rounds are resampled separately: the interval is from the percentile bootstrap of two independent
samples (Efron and Tibshirani, 1993, section 8.3), each of complete rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from thunder_core.foundation.errors import BadOption
from thunder_core.workflow.benchmark.interval import BenchmarkFacts, Interval
from thunder_core.workflow.benchmark.report import BenchmarkCandidate, BenchmarkReport
from thunder_core.workflow.benchmark.statistics import CONFIDENCE, RESAMPLES, SEED
from thunder_core.workflow.benchmark.suite import BenchmarkSuite
from thunder_core.workflow.benchmark.verdict import Verdict, verdict_of

MAY_DIFFER = frozenset({"model", "recipe"})  # the keys of a configuration in which two results may differ


class CandidateComparison(BenchmarkFacts):
    """One candidate at one size, in two results."""

    configuration: dict[str, str]
    """The common configuration of both results: the size and the dtype."""
    candidate: str
    first: Interval
    """The speed-up in the first result."""
    second: Interval
    ratio: Interval
    """The speed-up in the second result divided by the speed-up in the first."""
    verdict: Verdict
    """The verdict on the second result compared with the first."""
    rounds: int
    """The smaller number of rounds of the two results."""


def contrast_suites(first: BenchmarkSuite, second: BenchmarkSuite) -> list[CandidateComparison]:
    """Compare each candidate, except the first, at each size that both results have.

    Raises BadOption for results of different machines, or without common measurements.
    """
    second_reports = {_task(report): report for report in second.measured}
    pairs = [(report, second_reports[_task(report)]) for report in first.measured if _task(report) in second_reports]
    rows = [row for pair in pairs for row in _compare_reports(*pair)]
    if not rows:
        raise BadOption(
            f"the two results have nothing in common: the first has {_tasks(first)}, the second {_tasks(second)}",
            fix="measure both at the same sizes and dtype, against the same contender",
        )
    return rows


def _task(report: BenchmarkReport) -> tuple[tuple[str, str], ...]:
    common = _common(report.configuration)
    return (("against", report.first.name), *sorted(common.items()))


def _common(configuration: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in configuration.items() if key not in MAY_DIFFER}


def _tasks(suite: BenchmarkSuite) -> str:
    return "; ".join(" ".join(f"{key}={value}" for key, value in _task(report)) for report in suite.reports)


def _compare_reports(first: BenchmarkReport, second: BenchmarkReport) -> Iterator[CandidateComparison]:
    if (first.machine, first.device) != (second.machine, second.device):
        raise BadOption(
            f"the first result was measured on {first.machine} ({first.device}), the second on {second.machine} "
            f"({second.device})",
            fix="measure both on one machine, with the same number of --threads",
        )
    for candidate in first.candidates[1:]:
        for counterpart in second.candidates[1:]:
            if candidate.name == counterpart.name:
                yield _compare_candidates(first, second, candidate, counterpart)


def _compare_candidates(
    first: BenchmarkReport, second: BenchmarkReport, candidate: BenchmarkCandidate, counterpart: BenchmarkCandidate
) -> CandidateComparison:
    ratio = _ratio((first.first, candidate), (second.first, counterpart))
    rounds = min(len(candidate.seconds), len(counterpart.seconds))
    return CandidateComparison(
        configuration=_common(first.configuration),
        candidate=candidate.name,
        first=candidate.speedup,
        second=counterpart.speedup,
        ratio=ratio,
        verdict=verdict_of(ratio, rounds, first.first, candidate, second.first, counterpart),
        rounds=rounds,
    )


def _ratio(
    first: tuple[BenchmarkCandidate, BenchmarkCandidate], second: tuple[BenchmarkCandidate, BenchmarkCandidate]
) -> Interval:
    """Return the second speed-up divided by the first, with its interval."""
    generator = np.random.default_rng(SEED)
    ratios = _speedups(second, generator) / _speedups(first, generator)
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(ratios, [tail, 100 - tail]).tolist()
    return Interval(value=second[1].speedup.value / first[1].speedup.value, low=low, high=high)


def _speedups(
    pair: tuple[BenchmarkCandidate, BenchmarkCandidate], generator: np.random.Generator
) -> NDArray[np.float64]:
    """Return the speed-ups of the second candidate of a pair over the first, one for each resample of the rounds."""
    times = np.asarray([candidate.seconds for candidate in pair])
    rounds = generator.integers(0, times.shape[1], (RESAMPLES, times.shape[1]))
    eager, candidate_median = np.median(times[:, rounds], axis=-1)
    return np.asarray(eager / candidate_median)
