"""Faults planted into programs of five families: nearly all are found, and nearly all of these are named by line."""

from __future__ import annotations

import pytest

from tests.planted.faults import sampled
from tests.planted.report import missed, table
from tests.planted.subject import FAMILIES

# Faults of each kind into each family. A program is compiled once for all. `python -m tests.planted` plants all faults.
COUNTS = {"kernel": 8, "transform": 5, "derivative": 3, "guard": 4, "epilogue": 4, "unpacking": 3}
CAUGHT, NAMED = 0.98, 0.95
AT_LEAST = 100


@pytest.mark.slow
def test_wrong_lines_are_caught_and_named() -> None:
    """Of the faults that change a value, an examination finds 98%, and names 95% by the exact line."""
    outcomes = [outcome for family in FAMILIES for outcome in sampled(family, COUNTS, seed=0)]
    counted = [fault for fault in outcomes if fault.counts]
    told = f"\n{missed(outcomes)}\n{table(outcomes)}"
    assert len(counted) >= AT_LEAST, told
    assert sum(fault.caught for fault in counted) >= CAUGHT * len(counted), told
    assert sum(fault.named for fault in counted) >= NAMED * len(counted), told
