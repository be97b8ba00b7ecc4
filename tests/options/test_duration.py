"""Durations are read with their units, and other text is refused."""

from __future__ import annotations

import pytest

from thunder_core.foundation.errors import BadOption
from thunder_core.foundation.options.duration import parse_duration


@pytest.mark.parametrize(
    ("text", "seconds"), [("0s", 0), ("10s", 10), ("1m", 60), ("0.5", 0.5), ("250ms", 0.25), (2, 2), ("1h", 3600)]
)
def test_number_and_unit_are_seconds(text, seconds):
    assert parse_duration("--tune", text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 day", "10 s s", "nan", "1e3s"])
def test_anything_else_is_refused(text):
    with pytest.raises(BadOption, match="--tune is"):
        parse_duration("--tune", text)
