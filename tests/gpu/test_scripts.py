"""The scripts for a machine with a GPU, in small: kernels under compute-sanitizer, times of kernels, copied bytes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import thunder_core as thunder
from tests.executors.cudagraphs.stand_in import OnCpu, StandIn
from tests.gpu import copied_bytes, sanitize
from tests.gpu.run_examples import run
from thunder_core.foundation import plugins
from thunder_executors.cudagraphs import graph

needs_triton = pytest.mark.skipif(not plugins.is_installed("triton"), reason="needs Triton")
SANITIZER = """#!{python}
import subprocess, sys
tool, command = sys.argv[2], sys.argv[sys.argv.index({python!r}):]
print("========= COMPUTE-SANITIZER")
name = command[3]
if name == "gated":
    sys.exit(3)
if tool == "racecheck":
    print("========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)")
    sys.exit(int(sys.argv[4]))
if name == "rms_norm":
    subprocess.run(command, check=True)
print("========= ERROR SUMMARY: 0 errors")
"""


@pytest.fixture
def sanitizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program with the options and the output of compute-sanitizer."""
    path = tmp_path / sanitize.SANITIZER
    path.write_text(SANITIZER.format(python=sys.executable))
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    return tmp_path / "out" / "sanitizer.json"


@needs_triton
def test_kernels_run_under_the_sanitizer_and_errors_are_counted(
    sanitizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sanitize", "rms_norm", "gated", "int8_linear", "--device", "cpu"])
    assert sanitize.main() == 1
    rows = {(row["tool"], row["operation"]): row for row in json.loads(sanitizer.read_text())}
    assert {key: row["errors"] for key, row in rows.items()} == {
        ("memcheck", "rms_norm"): 0,
        ("memcheck", "gated"): None,
        ("memcheck", "int8_linear"): 0,
        ("racecheck", "int8_linear"): 2,
    }
    assert "gated                            did not finish" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["sanitize", "rotary", "--device", "cpu"])
    assert sanitize.main() == 0


def test_a_missing_sanitizer_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sanitize, "find_sanitizer", lambda: None)
    monkeypatch.setattr(sys, "argv", ["sanitize"])
    assert sanitize.main() == 1
    assert "CUDA toolkit" in capsys.readouterr().out


@needs_triton
def test_each_kernel_is_checked_and_those_that_combine_partial_results_also_for_races() -> None:
    from thunder_executors.triton.operations import OPERATORS

    assert {name for tool, name in sanitize.jobs(list(OPERATORS)) if tool == "memcheck"} == set(OPERATORS)
    assert set(sanitize.RACING) <= set(OPERATORS)
    assert run(["quantize_rows"], "cpu") == 6


def half_a_millisecond(call: Any) -> float:
    """Call a kernel, and return a time."""
    call()
    return 0.5


@needs_triton
def test_each_kernel_has_an_example_whose_bytes_are_counted() -> None:
    from benchmarks import gpu_kernels
    from thunder_executors.triton.operations import OPERATORS

    small = gpu_kernels.Sizes(rows=4, width=128, inner=128, heads=4, groups=2, head=16, words=64, slots=32)
    assert set(gpu_kernels.CASES) == set(OPERATORS)
    torch.manual_seed(0)
    with np.errstate(all="ignore"):  # infinities are silent on a GPU
        rows = {
            name: gpu_kernels.measure(
                name,
                gpu_kernels.random_tensors("cpu"),
                small,
                {"copy_gb_per_s": 1000.0, "product_tflop_per_s": 1e-3},
                half_a_millisecond,
            )
            for name in OPERATORS
        }
    assert rows["rms_norm"]["bytes"] == 2 * (4 * 128 + 128 + 4 * 128)
    assert rows["gated"]["bytes"] == 2 * 3 * 4 * 128
    assert rows["normalized_gated"]["bytes"] == 2 * (2 * 128 + 128 + 2 * 128 * 128 + 2 * 128)
    assert rows["rms_norm"]["bound_ms"] == pytest.approx(rows["rms_norm"]["bytes"] / 1e9)
    assert rows["linear_cross_entropy"]["bound"] == "product"
    assert all(row["bound"] == "copy" for name, row in rows.items() if "linear_cross" not in name)
    assert "rotary_into_cache" in gpu_kernels.line_of(rows["rotary_into_cache"])


@pytest.fixture
def small_llama() -> Any:
    """Return a function that makes a small Llama."""

    def make() -> Any:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            vocab_size=64,
        )
        return transformers.LlamaForCausalLM(config)

    return make


@pytest.mark.slow
@pytest.mark.parametrize("name", copied_bytes.JOBS)
def test_a_validation_does_not_change_what_graphs_copy(
    name: str, small_llama: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph, "CUDA", StandIn())
    report = copied_bytes.measure([name], small_llama, lambda model: thunder.jit(model, executors=(OnCpu(), "torch")))[
        name
    ]
    assert report["problems"] == []
    assert report["before"]["replays"] >= 1
    assert (report["before"]["lent"] > 0) == (name == "training")
    assert (report["after"]["captures"], report["after"]["parameters"]) == (0, 0)


def test_changes_are_reported() -> None:
    row = copied_bytes.Replays(1, 100, 10).as_row()
    assert copied_bytes.problems(row, row, 0) == []
    assert copied_bytes.problems(row, {**row, "copied_in": 5, "parameters": 2}, 8) == [
        "2 parameters are copied",
        "a validation changes what is copied",
    ]
    assert copied_bytes.problems({**row, "replays": 0}, row, 0)[0] == "no graph is replayed"
