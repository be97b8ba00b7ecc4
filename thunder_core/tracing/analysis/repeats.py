"""Find repeats: equal consecutive segments of a sequence, such as the layers of a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

# The largest number of candidate periods; the most frequent distances between equal keys are tried first.
MAX_PERIODS_TRIED = 8
MIN_PERIOD = 4  # keys; a shorter period is not worth a separate function


@dataclass(frozen=True)
class Repeat:
    """A repeat: from `start` on, the same `period` keys occur `count` times.

    The next `slack` keys continue the pattern.
    """

    start: int
    period: int
    count: int
    slack: int = 0

    @property
    def stop(self) -> int:
        """The end of the last complete period."""
        return self.start + self.period * self.count

    @property
    def saved(self) -> int:
        """The number of keys in the periods after the first."""
        return self.period * (self.count - 1)

    @property
    def cuts(self) -> list[int]:
        """The positions at which periods begin, and the end of the last period."""
        return [self.start + self.period * number for number in range(self.count + 1)]

    def shift(self, by: int) -> Repeat:
        """Return the repeat shifted to a later start; a shift by more than the slack loses a period."""
        length = self.period * self.count + self.slack - by
        return Repeat(self.start + by, self.period, length // self.period, length % self.period)


def find_repeats(keys: Sequence[Hashable]) -> list[Repeat]:
    """Return disjoint repeats of a sequence, in order; each saves more keys than any other repeat in its segment.

    The time for each repeat is linear in the length of the sequence.
    """
    return sorted(_repeats_between(keys, 0, len(keys)), key=lambda repeat: repeat.start)


def _repeats_between(keys: Sequence[Hashable], start: int, stop: int) -> Iterator[Repeat]:
    candidates = [repeat for period in _periods(keys, start, stop) for repeat in _runs(keys, start, stop, period)]
    if not candidates:
        return
    best = max(candidates, key=lambda repeat: (repeat.saved, -repeat.period))
    yield best
    yield from _repeats_between(keys, start, best.start)
    yield from _repeats_between(keys, best.stop, stop)


def _periods(keys: Sequence[Hashable], start: int, stop: int) -> list[int]:
    """Return candidate periods: the most frequent distances of a key from its next four occurrences."""
    indices: dict[Hashable, list[int]] = {}
    for index in range(start, stop):
        indices.setdefault(keys[index], []).append(index)
    distances: Counter[int] = Counter()
    for positions in indices.values():
        for step in (1, 2, 3, 4):
            distances.update(second - first for first, second in zip(positions, positions[step:], strict=False))
    return [period for period, _ in distances.most_common() if period >= MIN_PERIOD][:MAX_PERIODS_TRIED]


def _runs(keys: Sequence[Hashable], start: int, stop: int, period: int) -> Iterator[Repeat]:
    """Yield the repeats with this period: stretches in which each key equals the key one period later."""
    breaks = [index for index in range(start, stop - period) if keys[index] != keys[index + period]]
    for before, after in pairwise([start - 1, *breaks, stop - period]):
        length = after - before - 1 + period
        if length >= 2 * period:
            yield Repeat(before + 1, period, length // period, length % period)
