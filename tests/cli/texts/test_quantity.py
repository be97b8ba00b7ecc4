"""Numbers in human-readable form."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from thunder_cli.views.quantity import count_noun, format_age, format_bytes, format_magnitude, format_speedup
from thunder_core.workflow.benchmark import Interval


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (1.234e-7, "1.2e-07"), (0.5, "0.5"), (math.inf, "inf"), (math.nan, "nan")]
)
def test_magnitude(value, text):
    assert format_magnitude(value) == text


def test_speedup():
    assert format_speedup(Interval(value=1.234, low=1.1, high=1.4)) == "1.23x  [1.10, 1.40]"


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (67_000, "65.4 KiB"), (3 << 39, "1.5 TiB")]
)
def test_size(value, text):
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    ("elapsed", "text"),
    [
        (-5, "just now"),
        (59, "just now"),
        (119, "1 min ago"),
        (7_200, "2 h ago"),
        (86_400, "24 h ago"),
        (34_560_000, "400 days ago"),
    ],
)
def test_ago(elapsed, text):
    assert format_age(timedelta(seconds=elapsed)) == text


def test_counted():
    assert [count_noun(number, "entry", "entries") for number in (0, 1, 2000)] == [
        "0 entries",
        "1 entry",
        "2,000 entries",
    ]
