"""The recipes on the process groups of other devices: NCCL with one rank for each GPU, and gloo for the test itself."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.multiprocessing as mp

from tests.distributed.preload import fork_server
from tests.distributed.recipes import backends


@pytest.mark.gpu
def test_recipes_train_as_pytorch_with_nccl(tmp_path: Path) -> None:
    """On a machine with one GPU, the group has one rank, which NCCL supports."""
    size = min(torch.cuda.device_count(), 4)
    mp.spawn(backends.train, (size, "nccl", "cuda", str(tmp_path / "store")), nprocs=size)


def test_recipes_train_as_pytorch_with_gloo(tmp_path: Path) -> None:
    fork_server()  # which has the modules of the ranks
    mp.start_processes(backends.train, (2, "gloo", "cpu", str(tmp_path / "store")), 2, start_method="forkserver")
