"""Training on four ranks: on a mesh of two axes, the sum of `fsdp` and `ddp` equals `fully_shard` on the mesh."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.ranks import Ranks

MODULE = "tests.distributed.meshes"
CASES: dict[str, tuple[Any, ...]] = {
    "hybrid equals PyTorch with SGD in float64": ("hybrid_equals_pytorch", "float64", "sgd", True),
    "hybrid equals PyTorch with AdamW in bfloat16": ("hybrid_equals_pytorch", "bfloat16", "adamw", False),
    "hybrid clips and accumulates gradients": ("hybrid_clips_and_accumulates",),
    "hybrid reduces shards over replicas": ("hybrid_reduces_shards_over_replicas",),
    "hybrid has the state of PyTorch": ("hybrid_state_is_that_of_pytorch",),
    "hybrid cannot be saved": ("hybrid_cannot_be_saved",),
    "fsdp on four ranks equals PyTorch": ("four_shards_equal_pytorch",),
    "hybrid refuses no_sync and groups that are no mesh": ("hybrid_refusals",),
}


@pytest.mark.parametrize("case", CASES)
def test_on_four_ranks(four_ranks: Ranks, case: str) -> None:
    four_ranks.run(MODULE, *CASES[case])
