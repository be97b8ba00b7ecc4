"""Medians, quartiles and the confidence interval of the speed-up, from measured times."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from thunder_core.workflow.benchmark.interval import Interval
from thunder_core.workflow.benchmark.report import BenchmarkCandidate

CONFIDENCE = 0.95
RESAMPLES = 2000
SEED = 20
EXACTLY_ONE = Interval(value=1.0, low=1.0, high=1.0)


def describe_candidate(
    name: str, seconds: Sequence[float], first: Sequence[float], peak: int | None
) -> BenchmarkCandidate:
    """Return the statistics of one candidate, with its speed-up over the first."""
    low, median, high = np.percentile(seconds, [25, 50, 75]).tolist()
    return BenchmarkCandidate(
        name=name,
        seconds=tuple(seconds),
        median=median,
        first_quartile=low,
        third_quartile=high,
        minimum=min(seconds),
        maximum=max(seconds),
        speedup=EXACTLY_ONE if seconds is first else speedup(first, seconds),
        peak_bytes=peak,
    )


def speedup(first: Sequence[float], second: Sequence[float]) -> Interval:
    """Return the ratio of the medians, with a percentile bootstrap over rounds that resamples pairs of times."""
    before, after = np.asarray(first), np.asarray(second)
    rounds = np.random.default_rng(SEED).integers(0, len(before), (RESAMPLES, len(before)))
    ratios = np.median(before[rounds], axis=-1) / np.median(after[rounds], axis=-1)
    low, high = np.percentile(ratios, [50 * (1 - CONFIDENCE), 50 * (1 + CONFIDENCE)]).tolist()
    return Interval(value=float(np.median(before) / np.median(after)), low=low, high=high)
