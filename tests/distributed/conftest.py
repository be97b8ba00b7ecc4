"""The pair of ranks that all cases of a process share."""

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
