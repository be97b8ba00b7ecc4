"""Free memory is the figure of the system, and errors of allocations that exceed it are recognized."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from thunder_core.foundation import memory_limits
from thunder_core.workflow.models.memory.free_memory import free_memory, is_out_of_memory

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_container(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests run in no control group that sets a limit."""
    monkeypatch.setattr(memory_limits, "limited_memory", lambda: None)


def test_of_the_cpu_it_is_what_linux_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  64 kB\nMemAvailable:   48 kB\nHugePages_Total: 0\n")
    monkeypatch.setattr(memory_limits, "MEMORY_FILE", tmp_path / "meminfo")
    assert free_memory(CPU) == 48 * 1024


@pytest.mark.parametrize("content", [None, "MemTotal:  64 kB\n"])
def test_where_it_is_not_said_it_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    monkeypatch.setattr(memory_limits, "MEMORY_FILE", tmp_path / "meminfo")
    if content is not None:
        (tmp_path / "meminfo").write_text(content)
    assert free_memory(CPU) is None
    assert free_memory(torch.device("meta")) is None


@pytest.mark.parametrize("shape", [(1 << 50,), (1 << 40, 1 << 40)])
def test_pytorchs_messages_of_missing_memory_are_known(shape: tuple[int, ...]) -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(shape)
    assert is_out_of_memory(raised.value)


@pytest.mark.parametrize(
    ("error", "known"),
    [(MemoryError(), True), (RuntimeError("shape mismatch"), False), (ValueError("can't allocate memory"), False)],
)
def test_other_errors(error: Exception, known: bool) -> None:
    assert is_out_of_memory(error) is known


SEGMENTS = [
    {"device": 0, "total_size": 100, "allocated_size": 60, "segment_pool_id": (0, 0)},
    {"device": 0, "total_size": 50, "allocated_size": 0, "segment_pool_id": (0, 1)},  # of a CUDA graph
    {"device": 1, "total_size": 9, "allocated_size": 2, "segment_pool_id": (0, 0)},
    {"device": 0, "total_size": 8, "allocated_size": 8, "segment_pool_id": (0, 0)},
]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 5000))
    monkeypatch.setattr(torch.cuda, "memory_snapshot", lambda: SEGMENTS)


@pytest.mark.parametrize(("device", "free"), [("cuda", 1040), ("cuda:0", 1040), ("cuda:1", 1007), ("cuda:2", 1000)])
@pytest.mark.usefixtures("gpu")
def test_cached_blocks_outside_of_graphs_are_free(device: str, free: int) -> None:
    assert free_memory(torch.device(device)) == free


def test_a_build_without_cuda_has_unknown_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_is_compiled", lambda: False)
    assert free_memory(torch.device("cuda")) is None
