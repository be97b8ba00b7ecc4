"""The GPU benchmark on a CPU: each kind of contender runs, in small, and the time limit holds."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu, gpu_contenders
from benchmarks.gpu_contenders import maker_of

SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
SHAPES = {"prefill": "2 x 6", "train": "2 x 6", "decode": "decode", "generate": "4 tokens"}
WAYS = ("eager", "thunder without sdpa")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model on the CPU, with the functions of `torch.cuda` that the benchmark calls."""
    for name, value in {
        "DEVICE": "cpu",
        "SIZES": SMALL,
        "VOCABULARY": 64,
        "CACHE": 16,
        "PROMPT": 8,
        "TOKENS": 4,
    }.items():
        monkeypatch.setattr(gpu_contenders, name, value)
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    for name in ("max_memory_allocated", "memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: 0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("job", SHAPES)
def test_each_way_computes_the_numbers_of_eager(job: str, small: None, tmp_path: Path) -> None:
    rows = [gpu.contend(job, SHAPES[job], way, 1, 0.01, tmp_path, 1) for way in WAYS]
    for row in rows:
        assert row["rounds"] >= 5
        assert row["mean"] == pytest.approx(rows[0]["mean"], rel=1e-2, abs=1e-2)
        assert row["norm"] == pytest.approx(rows[0]["norm"], rel=1e-2)
        assert gpu.line_of(json.loads(json.dumps(row)), 1.0).startswith(job)
    assert all(row["programs"] and "operations" in row for row in rows[1:])


def test_each_job_has_a_contender_that_is_made() -> None:
    for job, shapes in gpu.JOBS.items():
        for shape, ways in shapes.items():
            assert maker_of(job, shape)
            assert {"eager", "thunder"} <= set(ways)


def test_prefill_and_training_come_first_and_a_call_of_ten_minutes_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both were measured before most of the kernels were written."""
    given: list[tuple[list[str], float]] = []
    monkeypatch.setattr(sys, "argv", ["gpu"])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(gpu, "limits", dict)
    monkeypatch.setattr(
        gpu, "run_jobs", lambda options, report, deadline: given.append((options.jobs, deadline - time.monotonic()))
    )
    gpu.main()
    ((jobs, seconds),) = given
    assert jobs == ["prefill", "train", "decode"]
    assert 500 < seconds < 600


HANGING = "import sys, time\nif 'eager' in sys.argv:\n    print('{\"job\": \"j\"}')\nelse:\n    time.sleep(60)\n"


@pytest.mark.parametrize("job", ["prefill", "train"])
def test_contenders_that_hang_are_ended_and_the_others_keep_their_rows(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hanging.py").write_text(HANGING)
    start = subprocess.Popen

    def replaced(command: list[str], **options: Any) -> Any:
        return start([command[0], str(tmp_path / "hanging.py"), *command[3:]], **options)

    monkeypatch.setattr(subprocess, "Popen", replaced)
    options = argparse.Namespace(layers=1, seconds=1.0)
    before = time.monotonic()
    rows = gpu.run_shape(job, "1 x 8", ("eager", "thunder"), options, before + 3)
    assert time.monotonic() - before < 30
    assert rows[0] == {"job": "j"}
    assert rows[1]["way"] == "thunder"
    assert "was the time over?" in rows[1]["error"]
