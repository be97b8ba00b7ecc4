"""Faults planted into programs of five families: nearly all are found, and nearly all of these are named by line."""

from __future__ import annotations

import pytest

from tests.planted.faults import plant_sample
from tests.planted.report import missed_faults, table
from tests.planted.subject import FAMILIES

# Faults of each kind into each family. A program is compiled once for all. `python -m tests.planted` plants all faults.
COUNTS = {"kernel": 8, "transform": 5, "derivative": 3, "guard": 4, "epilogue": 4, "unpacking": 3}
CAUGHT, NAMED = 0.98, 0.95
AT_LEAST = 20


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_wrong_lines_are_caught_and_named(family: str) -> None:
    """Of the faults that change a value, an examination finds 98%, and names 95% by the exact line."""
    outcomes = list(plant_sample(family, COUNTS, seed=0))
    counted = [fault for fault in outcomes if fault.counts]
    shown = f"\n{missed_faults(outcomes)}\n{table(outcomes)}"
    assert len(counted) >= AT_LEAST, shown
    assert sum(fault.caught for fault in counted) >= CAUGHT * len(counted), shown
    assert sum(fault.named for fault in counted) >= NAMED * len(counted), shown
