"""Observed values: the numbers and sizes that differ from call to call."""

from __future__ import annotations

import math

import pytest

from thunder_core.backend.runtime.observed_values import ObservedValues


@pytest.mark.parametrize(
    ("first", "second", "differs"),
    [(1, 1, False), (1, 2, True), (1, 1.0, True), (0.0, -0.0, True), (math.nan, -math.nan, False), (True, 1, True)],
)
def test_numbers_differ_if_guards_distinguish_them(first: float, second: float, differs: bool) -> None:
    assert ObservedValues(first={"scale": first}).differs("scale", second) == differs


def test_a_number_that_is_known_to_change_always_differs() -> None:
    assert ObservedValues(changing={"scale"}).differs("scale", 1)
    assert not ObservedValues().differs("scale", 1)
