"""The benchmark of training on several ranks runs from its command line, and writes the columns of its table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import distributed
from benchmarks.distributed import MIB, Memory, Model
from tests.distributed.preload import fork_server

SIZES = ("--layers", "2", "--width", "64", "--rows", "8", "--rounds", "1")
EAGER = ("DDP", "FSDP2", "parallelize_module")
RECIPES = tuple(f"recipe {name}, eager operations" for name in ("ddp", "fsdp", "tensor-parallel"))


@pytest.fixture(autouse=True)
def quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the ranks in copies of a process that has imported all modules."""
    monkeypatch.setattr("benchmarks.distributed.mp.get_context", lambda kind: fork_server())


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.distributed", *SIZES, *arguments])
    distributed.main()


def test_table_has_the_time_of_each_contender(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = [*EAGER, *RECIPES]
    run(monkeypatch, "--only", *names, "--out", str(tmp_path / "result.json"))
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["ranks"], result["rounds"], result["MiB"]) == (2, 1, {})
    assert list(result["seconds"]) == names
    assert all(0 < seconds < 60 for seconds in result["seconds"].values())
    rows = capsys.readouterr().out.splitlines()
    assert rows == [f"{name:40} {1000 * seconds:8.1f} ms" for name, seconds in result["seconds"].items()]


def test_table_has_the_memory_of_each_contender(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = ["DDP", "recipe fsdp, eager operations"]
    run(monkeypatch, "--memory", "--only", *names, "--out", str(tmp_path / "result.json"))
    memory = json.loads((tmp_path / "result.json").read_text())["MiB"]
    assert list(memory) == names
    rows = capsys.readouterr().out.splitlines()
    for row, name in zip(rows, names, strict=True):
        assert list(memory[name]) == list(Memory._fields)
        for field, value in memory[name].items():
            assert f"  {field} {value:6.1f} MiB" in row
    weights = sum(parameter.nbytes for parameter in Model(2, 64).parameters()) / MIB
    assert 4 * weights < memory["DDP"]["allocated"] < 10 * weights  # weights, gradients, and two states of AdamW
    assert 2 * weights < memory["recipe fsdp, eager operations"]["allocated"] < memory["DDP"]["allocated"]
    assert all(0 < memory[name]["step"] < 10 * weights for name in names)


def test_rank_that_fails_ends_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed, "END_SECONDS", 1.0)
    monkeypatch.setattr(
        sys, "argv", ["benchmarks.distributed", *SIZES, "--ranks", "1", "--rows", "-1", "--only", "DDP"]
    )
    with pytest.raises(RuntimeError, match="a rank has failed"):
        distributed.main()
