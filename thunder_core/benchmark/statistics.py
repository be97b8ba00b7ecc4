"""From raw times to medians, quartiles and a confidence interval of the speed-up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from thunder_core.benchmark.interval import Interval
from thunder_core.benchmark.report import BenchmarkCandidate

Times = NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES = 2000
SEED = 20
EXACTLY_ONE = Interval(value=1.0, low=1.0, high=1.0)


def describe_candidate(
    name: str, seconds: Sequence[float], first: Sequence[float], peak: int | None
) -> BenchmarkCandidate:
    """The figures of one candidate beside those of the first."""
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


def speedup(first: Sequence[float], other: Sequence[float]) -> Interval:
    """Ratio of the medians; the percentile bootstrap draws whole rounds, whose two times belong together."""
    found = stats.bootstrap(
        (np.asarray(first), np.asarray(other)),
        _ratio_of_medians,
        paired=True,
        vectorized=True,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    value = float(np.median(first) / np.median(other))
    return Interval(value=value, low=float(found.low), high=float(found.high))


def _ratio_of_medians(first: Times, other: Times, axis: int = -1) -> Times:
    return np.asarray(np.median(first, axis=axis) / np.median(other, axis=axis))
