"""Sizes and ages in human-readable form."""

from __future__ import annotations

from datetime import timedelta

import pytest

from thunder_core.foundation.errors import BadOption
from thunder_core.foundation.options.amount import age_of, bytes_of


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1024", 1024),
        ("500M", 500 << 20),
        ("1.5GiB", 3 << 29),
        ("2 GB", 2 * 10**9),
        ("7kb", 7000),
        ("1T", 1 << 40),
    ],
)
def test_sizes(text, size):
    assert bytes_of("--max-size", text) == size


@pytest.mark.parametrize("text", ["2x", "", "-1", "M", "1e9", "1,5G", "1.G", "2 G B", "nan", "inf"])
def test_text_that_is_no_size_is_refused(text):
    with pytest.raises(BadOption, match=r"--max-size is .*, which is not a size"):
        bytes_of("--max-size", text)


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("90s", timedelta(seconds=90)),
        ("45m", timedelta(minutes=45)),
        ("1.5h", timedelta(hours=1.5)),
        ("30D", timedelta(days=30)),
        ("2w", timedelta(weeks=2)),
    ],
)
def test_ages(text, age):
    assert age_of("--max-age", text) == age


@pytest.mark.parametrize("text", ["30", "d", "1y", "-1d", "", "9" * 400 + "d", "200000d"])
def test_text_that_is_no_age_is_refused(text):
    with pytest.raises(BadOption, match=r"--max-age is .*, which is not an age"):
        age_of("--max-age", text)
