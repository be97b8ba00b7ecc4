"""Modules with collectives of their own inside DistributedDataParallel, on two ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.distributed.ranks import Ranks

CHECKS = "tests.distributed.wrappers.normalized_over_ranks"


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_module_with_collectives_has_a_chain(ranks: Ranks, tmp_path: Path, dtype: torch.dtype) -> None:
    ranks.run(CHECKS, "collectives_in_pieces", str(tmp_path / "artifact"), dtype)


def test_ranks_compare_their_pieces(ranks: Ranks) -> None:
    ranks.run(CHECKS, "other_collective_in_the_backward")
