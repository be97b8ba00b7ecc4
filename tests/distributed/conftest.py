"""The ranks that all cases of a process share, and a process group of one rank."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist

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


@pytest.fixture
def group_of_one() -> Iterator[None]:
    """A default process group with this process as its only rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
