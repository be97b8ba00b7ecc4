"""The verdict on a measured speed-up: faster, slower, not distinguishable, or unstable.

The speed-up of a candidate is the ratio of the medians, the first candidate's divided by its own. The 95% interval is
from the percentile bootstrap over whole rounds (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section
13.3). The rounds within one process are assumed to be independent; differences between processes are not included. Each
verdict is separate, without a correction for several candidates.

| verdict | condition |
|---|---|
| `unstable` | 6 rounds or more, and the interval's upper end is more than 2 times its lower one, or the interquartile range of either candidate's times is wider than half of their median; even if one candidate is clearly ahead, because such scattered times are not useful |
| `faster` | 6 rounds or more, not unstable, and the whole interval is above 1 |
| `slower` | 6 rounds or more, not unstable, and the whole interval is below 1 |
| `not distinguishable` | otherwise: the interval contains 1, or there were fewer than 6 rounds |

Six rounds are only a necessary condition, because the interval is approximate for few rounds. With n rounds, even the
clearest result, the same candidate ahead in each round, has a probability of 2 / 2**n by chance (the sign test of Dixon
and Mood, 1946), which is below 5% from six rounds on.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from thunder_core.workflow.benchmark.interval import Interval

Verdict = Literal["faster", "slower", "not distinguishable", "unstable"]

MIN_ROUNDS = 6
WIDEST_INTERVAL = 2.0  # the upper end of the interval divided by the lower end
WIDEST_SPREAD = 0.5  # the interquartile range of the times divided by their median

WORDS: dict[Verdict, Callable[[str], str]] = {
    "faster": "faster than {}".format,
    "slower": "slower than {}".format,
    "not distinguishable": "not distinguishable from {}".format,
    "unstable": lambda _: "unstable: repeat on a quiet machine",
}


class Times(Protocol):
    """The statistics of one candidate's times that a verdict uses."""

    @property
    def median(self) -> float:
        """The median time of a round, in seconds."""

    @property
    def spread(self) -> float:
        """The interquartile range of the times, in seconds."""


def verdict_of(speedup: Interval, rounds: int, *candidates: Times) -> Verdict:
    """Return the verdict on a speed-up, by the table in the docstring of this module.

    `speedup` is the ratio of the medians, the first candidate's divided by the other's, with its 95% interval.
    `candidates` are the two or more candidates whose times the ratio uses.
    """
    if rounds < MIN_ROUNDS:
        return "not distinguishable"
    if not speedup.high <= WIDEST_INTERVAL * speedup.low or any(map(is_scattered, candidates)):
        return "unstable"
    if speedup.low > 1:
        return "faster"
    return "slower" if speedup.high < 1 else "not distinguishable"


def is_scattered(times: Times) -> bool:
    """Whether the interquartile range of the times is wider than half of their median."""
    return times.spread > WIDEST_SPREAD * times.median


def in_words(verdict: Verdict, first: str, rounds: int) -> str:
    """Return the verdict in words, with the name of the first candidate, such as `faster than eager`."""
    few = f": {rounds} round{' is' if rounds == 1 else 's are'} too few for a verdict" if rounds < MIN_ROUNDS else ""
    return f"{WORDS[verdict](first)}{few}"
