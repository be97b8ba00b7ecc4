"""The verdict on a speed that a measurement allows: faster, slower, not distinguishable, or unstable.

The speed-up of a candidate is the ratio of the medians, the first candidate's over its own. Its 95% interval is that of
the percentile bootstrap over whole rounds (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 13.3),
for rounds within one process, which are taken as independent: what differs from process to process is not in it. Each
verdict stands alone, without a correction for several candidates.

| verdict | where |
|---|---|
| `unstable` | 6 rounds or more, and the interval's upper end is more than 2 times its lower one, or the interquartile range of either candidate's times is wider than half of their median; also where one is clearly ahead, for so scattered a figure is not worth keeping |
| `faster` | 6 rounds or more, not unstable, and the whole interval lies above 1 |
| `slower` | the same, and the whole interval lies below 1 |
| `not distinguishable` | all else: the interval holds 1, or there were fewer than 6 rounds |

Six is a necessary condition alone, for the interval is approximate where rounds are few: with n rounds even the clearest
sign, the same candidate ahead in each, comes about by chance with a probability of 2 / 2**n (the sign test of Dixon and
Mood, 1946), which is below 5% from six on.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol

from thunder_core.workflow.benchmark.interval import Interval

Verdict = Literal["faster", "slower", "not distinguishable", "unstable"]

MIN_ROUNDS = 6
WIDEST_INTERVAL = 2.0  # its upper end over its lower one
WIDEST_SPREAD = 0.5  # the interquartile range of the times, over their median

WORDS: dict[Verdict, Callable[[str], str]] = {
    "faster": "faster than {}".format,
    "slower": "slower than {}".format,
    "not distinguishable": "not distinguishable from {}".format,
    "unstable": lambda _: "unstable: repeat on a quiet machine",
}


class Times(Protocol):
    """The times of one candidate, as far as a verdict looks at them."""

    @property
    def median(self) -> float:
        """The median time of a round, in seconds."""

    @property
    def spread(self) -> float:
        """The interquartile range of the times, in seconds."""


def verdict_of(speedup: Interval, rounds: int, *candidates: Times) -> Verdict:
    """The verdict on a speed-up, by the module's table.

    `speedup` is the ratio of the medians, the first candidate's over the other's, with its 95% interval; `candidates`
    are all whose times enter it.
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
    """The verdict in words, with the name of the first candidate."""
    few = f": {rounds} round{' is' if rounds == 1 else 's are'} too few for a verdict" if rounds < MIN_ROUNDS else ""
    return f"{WORDS[verdict](first)}{few}"
