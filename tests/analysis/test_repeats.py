"""Repeats of a sequence are found wherever they occur, and always cover equal keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thunder_core.tracing.analysis.repeats import MIN_PERIOD, Repeat, find_repeats

pytestmark = pytest.mark.hypothesis


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ("", []),
        ("abcdefgh", []),
        ("abcabcabc", []),  # too short for a shared function
        ("xabcdabcdabcdy", [Repeat(1, 4, 3)]),
        ("xabcdabcdaby", [Repeat(1, 4, 2, 2)]),
        ("abcdeabcdeXpqrspqrs", [Repeat(0, 5, 2), Repeat(11, 4, 2)]),
        ("aaaaaaaaaaaa", [Repeat(0, 4, 3)]),
        ("abcaabdaabcaabda", [Repeat(0, 8, 2)]),
    ],
)
def test_repeats_are_found(keys, found):
    assert find_repeats(keys) == found


@given(
    st.lists(st.integers(0, 5), max_size=8),
    st.lists(st.integers(0, 50), min_size=MIN_PERIOD, max_size=20, unique=True),
    st.integers(2, 6),
    st.lists(st.integers(0, 5), max_size=8),
)
def test_a_repeat_between_other_keys_is_covered(before, period, count, after):
    keys = [("before", key) for key in before] + period * count + [("after", key) for key in after]
    found = find_repeats(keys)
    assert max(repeat.saved for repeat in found) >= len(period) * (count - 1)


@given(st.lists(st.integers(0, 3), max_size=60))
def test_found_repeats_have_equal_keys_and_do_not_overlap(keys):
    end = 0
    for repeat in find_repeats(keys):
        assert repeat.start >= end
        end = repeat.stop
        first = keys[repeat.start : repeat.start + repeat.period]
        assert all(keys[cut : cut + repeat.period] == first for cut in repeat.cuts[:-1])
        assert repeat.count >= 2


def test_shift_beyond_the_slack_loses_a_period():
    repeat = Repeat(10, 5, 3, slack=2)
    assert repeat.shift(2) == Repeat(12, 5, 3, 0)
    assert repeat.shift(3) == Repeat(13, 5, 2, 4)
