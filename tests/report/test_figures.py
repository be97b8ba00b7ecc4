"""Numbers read as people write them."""

from __future__ import annotations

import math

import pytest

from thunder_core.report import figures
from thunder_core.report.figures import TIMES


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (figures.seconds, 0.0221, "22.1 ms"),
        (figures.seconds, 1.0, "1.00 s"),
        (figures.seconds, 61.25, "61.2 s"),
        (figures.seconds, 8.7e-6, "8.70 µs"),
        (figures.seconds, 3e-7, "0.300 µs"),
        (figures.seconds, 0.0, "0 µs"),
        (figures.size, 0, "0 B"),
        (figures.size, 1023, "1023 B"),
        (figures.size, 1 << 20, "1.00 MiB"),
        (figures.size, 141 << 30, "141 GiB"),
        (figures.count, 212, "212"),
        (figures.count, 8_030_000_000, "8.03B"),
        (figures.error, 0.0, "0"),
        (figures.error, 2.52e-7, "2.5e-07"),
        (figures.error, math.inf, "∞"),
        (figures.times, 1.416, f"1.42{TIMES}"),
        (figures.times, math.inf, "∞"),
        (figures.times, 0.0, f"0{TIMES}"),
        (figures.percent, 1.0, "100%"),
        (figures.percent, 0.99999, "99.9%"),
        (figures.percent, 0.0, "0%"),
        (figures.percent, 0.25, "25.0%"),
    ],
)
def test_numbers(function: object, value: float, text: str) -> None:
    assert function(value) == text


def test_long_names_lose_their_middle() -> None:
    assert figures.shortened("short", 8) == "short"
    assert figures.shortened("past_key_values.layers.0.keys", 12) == "past_…0.keys"
    assert len(figures.shortened("x" * 100, 31)) == 31
