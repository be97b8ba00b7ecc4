"""Axes: they map values to positions in a plot, and have ticks at round numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

STEPS = (1, 2, 2.5, 5, 10)


@dataclass(frozen=True)
class Tick:
    """A position on an axis, and its label."""

    at: float
    text: str


@dataclass(frozen=True)
class Axis:
    """A part of a plot, from `begin` to `end`, that shows the values from `low` to `high`."""

    low: float
    high: float
    begin: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the position of a value; a value outside the axis gets the position of the nearest end."""
        ends = (self.low, self.high, max(value, self.low))
        low, high, value = map(math.log10, ends) if self.logarithmic else ends
        share = min(1.0, (value - low) / (high - low))
        return round(self.begin + share * (self.end - self.begin), 2)

    def ticks(
        self, text: Callable[[float], str], target_count: int = 5, *, integers_only: bool = False
    ) -> tuple[Tick, ...]:
        """Return about `target_count` ticks at round values; at integers only if `integers_only` is set."""
        target_count = max(1, min(target_count, int(self.high - self.low))) if integers_only else target_count
        values = (
            _powers(self.low, self.high, target_count)
            if self.logarithmic
            else _round_values(self.low, self.high, target_count)
        )
        return tuple(Tick(self(value), text(value)) for value in values if not integers_only or value == int(value))


def linear(values: Iterable[float], begin: float, end: float, *, from_zero: bool) -> Axis:
    """Return an axis for all values, with a small margin, or from zero for bars."""
    low, high = _extent(values)
    margin = 0.05 * (high - low) or abs(high) * 0.05 or 1.0
    return Axis(0.0 if from_zero else low - margin, high + (0.0 if from_zero and high > 0 else margin), begin, end)


def logarithmic(values: Iterable[float], begin: float, end: float) -> Axis:
    """Return an axis by powers of ten for all values above zero."""
    low, high = _extent(value for value in values if 0 < value < math.inf)
    first, last = math.floor(math.log10(low)), math.floor(math.log10(high)) + 1
    return Axis(10.0**first, 10.0**last, begin, end, logarithmic=True)


def _extent(values: Iterable[float]) -> tuple[float, float]:
    listed = list(values) or [1.0]
    return min(listed), max(listed)


def _round_values(low: float, high: float, target_count: int) -> list[float]:
    exact_step = (high - low) / target_count
    power = 10.0 ** math.floor(math.log10(exact_step))
    step = next(s * power for s in STEPS if s * power >= exact_step * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [number * step for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _powers(low: float, high: float, target_count: int) -> list[float]:
    first, last = round(math.log10(low)), round(math.log10(high))
    step = max(1, math.ceil((last - first) / target_count))
    return [10.0**power for power in range(first, last + 1, step)]
