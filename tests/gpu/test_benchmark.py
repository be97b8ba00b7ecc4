"""The GPU benchmark on a CPU: each kind of contender runs, in small, and the time limit holds."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks import gpu, gpu_bounds, gpu_contenders
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
    for name in ("max_memory_allocated", "max_memory_reserved"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: 0)
    monkeypatch.setattr(torch.cuda, "memory_snapshot", list)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (1, 3))


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
            assert gpu_bounds.work_of(shape)


def test_each_job_has_the_best_modes_of_torch_compile() -> None:
    ways = {job: {way for ways in shapes.values() for way in ways} for job, shapes in gpu.JOBS.items()}
    for job, modes in {
        "decode": ("autotune", "decode"),
        "prefill": ("autotune", "prefill"),
        "train": ("autotune-train", "train"),
    }.items():
        assert {"compile max-autotune", "compile reduce-overhead"} <= {way for name in modes for way in ways[name]}, job


def test_prefill_and_training_come_first_and_a_call_of_ten_minutes_suffices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both were measured before most of the kernels were written."""
    given: list[tuple[list[str], float]] = []
    monkeypatch.setattr(sys, "argv", ["gpu"])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(name="a GPU"))
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


# ---- memory -------------------------------------------------------------------------------------------------------


def test_the_peak_contains_the_temporaries_of_graphs_and_the_driver_counts_a_process_that_is_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 70 GB live tensors, 30 are in the pools of graphs, which have 50 GB."""
    pools = ((0, 0), 100, 40), ((0, 1), 45, 25), ([1, 0], 5, 5)
    segments = [
        {"segment_pool_id": pool, "total_size": total * 10**9, "allocated_size": used * 10**9}
        for pool, total, used in pools
    ]
    facts = {
        "max_memory_allocated": 70 * 10**9,
        "max_memory_reserved": 150 * 10**9,
        "mem_get_info": (10 * 10**9, 170 * 10**9),
    }
    for name, value in {**facts, "memory_snapshot": segments}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    assert gpu.memory_facts(is_alone=False) == {"peak_gb": 90, "allocated_gb": 70, "reserved_gb": 150}
    assert gpu.memory_facts(is_alone=True)["driver_gb"] == 160


# ---- bounds -------------------------------------------------------------------------------------------------------


def properties(name: str, **stated: int) -> SimpleNamespace:
    return SimpleNamespace(name=name, **stated)


def test_the_bandwidth_is_the_drivers_or_that_of_the_data_sheet() -> None:
    stated = properties("NVIDIA H100 80GB HBM3", memory_clock_rate=2_619_000, memory_bus_width=5120)
    assert gpu_bounds.limits_of(stated).bandwidth == pytest.approx(3.35e12, rel=1e-2)
    for name, bandwidth, rate in (
        ("NVIDIA H100 80GB HBM3", 3.35e12, 989e12),
        ("NVIDIA H100 PCIe", 2.0e12, 756e12),
        ("NVIDIA H200", 4.8e12, 989e12),
        ("NVIDIA A100-SXM4-80GB", 2.04e12, 312e12),
    ):
        assert gpu_bounds.limits_of(properties(name)) == gpu_bounds.Limits(bandwidth, rate)


def test_the_bounds_of_an_unknown_gpu_are_left_out() -> None:
    unknown, measured = gpu_bounds.limits_of(properties("NVIDIA X1")), gpu_bounds.Limits(3e12, 670e12)
    row = {"job": "decode", "shape": "decode", "median_ms": 2.0, "queued_ms": 1.66}
    assert set(gpu_bounds.shares_of(row, unknown, measured)) == {"measured_bound_ms", "measured_bound_share"}
    assert gpu_bounds.shares_of(row, unknown, measured)["measured_bound_share"] == pytest.approx(0.5, abs=0.01)


# Milliseconds at the peak of an H100 and an H200, as `docs/gpu.md` states them.
BOUNDS = {
    "decode": ("decode", False, 0.74, 0.52),
    "prompt": ("1 x 2048", False, 4.3, 4.3),
    "training": ("4 x 2048", True, 64.8, 64.8),
    "generation": ("64 tokens", False, 47.8, 33.7),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_the_bounds_follow_from_the_bytes_and_the_products_of_the_model(name: str) -> None:
    shape, trains, h100, h200 = BOUNDS[name]
    works = gpu_bounds.work_of(shape, trains=trains)
    for gpu_name, expected in (("NVIDIA H100", h100), ("NVIDIA H200", h200)):
        assert gpu_bounds.bound_ms(works, gpu_bounds.DATA_SHEETS[gpu_name]) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("report", ["gpu-h100.json", "gpu-h200.json"])
def test_the_committed_results_have_shares_of_their_bounds(report: str) -> None:
    results = json.loads((Path(gpu.__file__).parent / "results" / report).read_text(encoding="utf-8"))
    lines = list(gpu_bounds.lines_of(results, 16))
    assert len(lines) == 1 + sum("error" not in row for row in results["rows"])
    assert not any("nan" in line for line in lines)
