"""Times in human-readable form."""

from __future__ import annotations

import pytest

from thunder_core.foundation.time_format import format_time


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 us"),
        (3e-7, "0.300 us"),
        (4.31e-6, "4.31 us"),
        (0.0123, "12.3 ms"),
        (0.012, "12.0 ms"),
        (0.999, "999 ms"),
        (1.0, "1.00 s"),
        (61.0, "1.02 min"),
    ],
)
def test_format_time(seconds: float, text: str) -> None:
    assert format_time(seconds) == text
