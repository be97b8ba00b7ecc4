"""Repeats: the stretches of a sequence that follow one another several times over, as the layers of a model do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

CANDIDATES = 8  # periods that are tried for a sequence, the most frequent distances between equal keys first
SHORTEST = 4  # keys in a period: less is not worth a function of its own


@dataclass(frozen=True)
class Repeat:
    """From `start` on, `count` times the same `period` keys; the next `slack` keys would begin it once more."""

    start: int
    period: int
    count: int
    slack: int = 0

    @property
    def stop(self) -> int:
        """Behind the last whole period."""
        return self.start + self.period * self.count

    @property
    def saved(self) -> int:
        """The number of keys that need not be looked at a second time."""
        return self.period * (self.count - 1)

    @property
    def cuts(self) -> list[int]:
        """The places at which periods begin, and the end of the last one."""
        return [self.start + self.period * number for number in range(self.count + 1)]

    def shifted(self, by: int) -> Repeat:
        """The repeat, begun so much later: past the slack it loses a period."""
        length = self.period * self.count + self.slack - by
        return Repeat(self.start + by, self.period, length // self.period, length % self.period)


def find_repeats(keys: Sequence[Hashable]) -> list[Repeat]:
    """The repeats of a sequence, apart from each other and in order; each saves as much as can be had where it is.

    Time grows linearly with the sequence for each repeat that is found.
    """
    return sorted(_found(keys, 0, len(keys)), key=lambda repeat: repeat.start)


def _found(keys: Sequence[Hashable], start: int, stop: int) -> Iterator[Repeat]:
    candidates = [repeat for period in _periods(keys, start, stop) for repeat in _runs(keys, start, stop, period)]
    if not candidates:
        return
    best = max(candidates, key=lambda repeat: (repeat.saved, -repeat.period))
    yield best
    yield from _found(keys, start, best.start)
    yield from _found(keys, best.stop, stop)


def _periods(keys: Sequence[Hashable], start: int, stop: int) -> list[int]:
    """The distances at which most keys come again, the next time and the time after: those are worth a try."""
    places: dict[Hashable, list[int]] = {}
    for place in range(start, stop):
        places.setdefault(keys[place], []).append(place)
    distances: Counter[int] = Counter()
    for positions in places.values():
        for step in (1, 2, 3, 4):
            distances.update(second - first for first, second in zip(positions, positions[step:], strict=False))
    return [period for period, _ in distances.most_common() if period >= SHORTEST][:CANDIDATES]


def _runs(keys: Sequence[Hashable], start: int, stop: int, period: int) -> Iterator[Repeat]:
    """The repeats of a period: where each key is the same as the one a period later."""
    breaks = [place for place in range(start, stop - period) if keys[place] != keys[place + period]]
    for before, after in pairwise([start - 1, *breaks, stop - period]):
        length = after - before - 1 + period
        if length >= 2 * period:
            yield Repeat(before + 1, period, length // period, length % period)
