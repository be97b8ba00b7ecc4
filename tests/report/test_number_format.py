"""Numbers in human-readable form."""

from __future__ import annotations

import math

import pytest

from thunder_core.workflow.report import number_format
from thunder_core.workflow.report.number_format import TIMES


@pytest.mark.parametrize(
    ("function", "value", "text"),
    [
        (number_format.size, 0, "0 B"),
        (number_format.size, 1023, "1023 B"),
        (number_format.size, 1 << 20, "1.00 MiB"),
        (number_format.size, 141 << 30, "141 GiB"),
        (number_format.count, 212, "212"),
        (number_format.count, 8_030_000_000, "8.03B"),
        (number_format.error, 0.0, "0"),
        (number_format.error, float("nan"), "NaN"),
        (number_format.error, 2.52e-7, "2.5e-07"),
        (number_format.error, math.inf, "∞"),
        (number_format.times, 1.416, f"1.42{TIMES}"),
        (number_format.times, math.inf, "∞"),
        (number_format.times, 0.0, f"0{TIMES}"),
        (number_format.percent, 1.0, "100%"),
        (number_format.percent, 0.999999, "99.99%"),
        (number_format.percent, 0.9996, "99.96%"),
        (number_format.percent, 0.1234, "12.34%"),
        (number_format.percent, 0.0, "0%"),
        (number_format.percent, 0.25, "25%"),
    ],
)
def test_numbers(function: object, value: float, text: str) -> None:
    assert function(value) == text


def test_long_names_lose_their_middle() -> None:
    assert number_format.shorten("short", 8) == "short"
    assert number_format.shorten("past_key_values.layers.0.keys", 12) == "past_…0.keys"
    assert len(number_format.shorten("x" * 100, 31)) == 31
