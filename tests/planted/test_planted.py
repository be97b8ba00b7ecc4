"""Faults planted into programs of five families: nearly all are caught, and nearly all of these named to the line."""

from __future__ import annotations

import pytest

from tests.planted.faults import sampled
from tests.planted.report import missed, table
from tests.planted.subject import FAMILIES

# Of each kind into each family; a program is compiled once for all of them.
COUNTS = {"kernel": 23, "transform": 14, "derivative": 8, "guard": 12, "epilogue": 12, "unpacking": 8}
CAUGHT, NAMED = 0.99, 0.95
AT_LEAST = 300


@pytest.mark.slow
def test_wrong_lines_are_caught_and_named() -> None:
    """Of what changes a value at all, an examination finds 99%, and names 95% to the exact line."""
    outcomes = [outcome for family in FAMILIES for outcome in sampled(family, COUNTS, seed=0)]
    counted = [one for one in outcomes if one.counts]
    told = f"\n{missed(outcomes)}\n{table(outcomes)}"
    assert len(counted) >= AT_LEAST, told
    assert sum(one.caught for one in counted) >= CAUGHT * len(counted), told
    assert sum(one.named for one in counted) >= NAMED * len(counted), told
