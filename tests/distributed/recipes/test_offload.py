"""The recipe fsdp keeps shards in the memory of the CPU, as CPUOffloadPolicy of fully_shard does."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.distributed.ranks import Ranks
from thunder_core.backend.parallel.offload import finish_copies

CASES: dict[str, tuple[Any, ...]] = {
    "shards of the CPU are not copied": ("shards_of_the_cpu_are_not_copied",),
    "copied from pinned memory in float64": ("copied_shards_train_like_pytorch", "float64", True),
    "copied from pageable memory in bfloat16": ("copied_shards_train_like_pytorch", "bfloat16", False),
    "reduced in another dtype": ("copied_shards_train_like_pytorch", "bfloat16", True, "float32"),
    "gradients are held and reduced": ("gradients_are_held_and_reduced",),
    "begins on the meta device": ("begins_on_the_meta_device",),
    "trace for a device, pinned": ("trace_has_copies_to_a_device_and_back", True),
    "trace for a device, pageable": ("trace_has_copies_to_a_device_and_back", False),
    "regions of Inductor take no copies": ("regions_of_inductor_take_no_copies",),
    "saved program copies shards": ("saved_program_copies_shards",),
    "unknown policies are refused": ("unknown_policies_are_refused",),
}


@pytest.mark.parametrize("case", CASES)
def test_offload(ranks: Ranks, case: str) -> None:
    ranks.run("tests.distributed.recipes.offload", *CASES[case])


@pytest.mark.parametrize("reduce_dtype", ["", "float32"])
def test_offload_with_replicas(four_ranks: Ranks, reduce_dtype: str) -> None:
    four_ranks.run("tests.distributed.recipes.offload", "replicas_average_before_the_copy", reduce_dtype)


def test_program_waits_for_the_copies_of_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host waits for the stream that copies from pinned memory; on the CPU, there is no such stream."""
    waits: list[torch.device] = []

    class Stream:
        """A stream of a device that this machine does not have."""

        def __init__(self, device: torch.device) -> None:
            self.device = device

        def synchronize(self) -> None:
            waits.append(self.device)

    monkeypatch.setattr(torch.accelerator, "current_stream", Stream)
    copies = [torch.ones(1), torch.zeros(2)]
    assert finish_copies(copies, torch.device("cpu"))[0].data_ptr() == copies[0].data_ptr()
    assert waits == []
    finish_copies(copies, torch.device("cuda", 1))
    assert waits == [torch.device("cuda", 1)]
