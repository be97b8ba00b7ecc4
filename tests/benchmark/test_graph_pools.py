"""The peak memory of a call that replays CUDA graphs contains their memory pools, on a stand-in for CUDA."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.executors.cudagraphs.test_recording import FakeCuda, FakeGraph, cuda  # noqa: F401
from thunder_core.workflow.benchmark import timing
from thunder_executors.cudagraphs import recording
from thunder_executors.cudagraphs.recording import Cuda

OUTSIDE, REPLAYED, UNUSED = (0, 0), (0, 1), (0, 2)
GPU = torch.device("cuda", 0)


class Graph(FakeGraph):
    """A graph of the first pool."""

    def pool(self) -> Any:
        return REPLAYED


def segment(pool: tuple[int, int], total: int, allocated: int) -> dict[str, Any]:
    return {"segment_pool_id": pool, "total_size": total, "allocated_size": allocated}


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch, cuda: FakeCuda) -> FakeCuda:  # noqa: F811
    """A CUDA whose allocator counts 70 bytes at the peak of a call, and 30 bytes before."""
    segments = [segment(OUTSIDE, 900, 0), segment(REPLAYED, 500, 100), segment(REPLAYED, 40, 40), segment(UNUSED, 8, 0)]
    facts = {
        "synchronize": lambda device: None,
        "reset_peak_memory_stats": lambda device: None,
        "memory_allocated": lambda device: 30,
        "max_memory_allocated": lambda device: 70,
        "memory_snapshot": lambda: segments,
        "CUDAGraph": Graph,
    }
    for name, value in facts.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(recording.torch.cuda, "CUDAGraph", lambda: Graph(cuda))
    return cuda


def test_pool_of_a_replayed_graph_is_counted(counting: FakeCuda) -> None:
    replay, _ = Cuda().record(lambda: (), (0, 7))
    assert timing.peak_memory_of(replay, GPU) == 40 + 540, "temporaries, and results that exist before the call"
    assert counting.replayed == 1


@pytest.mark.usefixtures("counting")
def test_pool_of_a_graph_that_is_not_replayed_is_not_counted() -> None:
    assert timing.peak_memory_of(lambda: None, GPU) == 40


@pytest.mark.usefixtures("counting")
def test_replay_is_as_before_after_a_measurement() -> None:
    before = Graph.replay
    with pytest.raises(ZeroDivisionError):
        timing.peak_memory_of(lambda: 1 / 0, GPU)
    assert Graph.replay is before
