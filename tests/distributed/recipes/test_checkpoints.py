"""Checkpoints of the recipe `fsdp`, with the optimizer, can be loaded by four ranks, by one rank and by FSDP2, and vice
versa.
"""

from __future__ import annotations

from pathlib import Path

import torch.distributed as dist

from tests.distributed.ranks import Ranks
from tests.distributed.recipes import checkpoints

MODULE = checkpoints.__name__


def test_checkpoints_go_from_two_to_four_to_one_rank(ranks: Ranks, four_ranks: Ranks, tmp_path: Path) -> None:
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    ranks.run(MODULE, "save", "recipe", first)
    four_ranks.run(MODULE, "goes_on", "recipe", first, second)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        checkpoints.goes_on("recipe", second)
    finally:
        dist.destroy_process_group()


def test_checkpoints_go_to_and_from_pytorch(ranks: Ranks, four_ranks: Ranks, tmp_path: Path) -> None:
    ours, theirs = str(tmp_path / "ours"), str(tmp_path / "theirs")
    ranks.run(MODULE, "save", "recipe", ours)
    ranks.run(MODULE, "save", "FSDP2", theirs)
    four_ranks.run(MODULE, "goes_on", "FSDP2", ours)
    four_ranks.run(MODULE, "goes_on", "recipe", theirs)
