"""The ranks that all cases of a process share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.distributed.ranks import Ranks


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Two processes with a gloo group."""
    pair = Ranks()
    yield pair
    pair.stop()


@pytest.fixture(scope="session")
def four_ranks() -> Iterator[Ranks]:
    """Four processes with a gloo group."""
    ranks = Ranks(4)
    yield ranks
    ranks.stop()
