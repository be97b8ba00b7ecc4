"""The whole chain on a stand-in for CUDA graphs: a process makes an artifact, and another one validates and uses it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.chain import TOKENS

pytest.importorskip("transformers")
pytest.importorskip("triton")
ROOT = Path(__file__).resolve().parents[2]
# The kernels of Thunder in programs for all lengths.
KERNELS = {
    "decode_attention_kernel",
    "rms_norm_forward_kernel",
    "rotary_kernel",
    "vector_product_kernel",
    "gated_forward_kernel",
    "normalized_linear_kernel",
    "normalized_gated_kernel",
}


def run(step: str, folder: Path) -> dict[str, Any]:
    """Run a step of the chain in a process of its own, and return its counts."""
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "executors", ROOT / "recipes")))
    command = [sys.executable, "-m", "tests.gpu.chain", step, str(folder)]
    # With Triton's interpreter, the executor takes tensors on the CPU.
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.timeout(900)
def test_an_artifact_with_graphs_is_made_validated_loaded_and_measured(tmp_path: Path) -> None:
    """No step copies a parameter or a cache before a replay. Each text has a new cache, and at most one new graph."""
    made = run("make", tmp_path / "artifact")["made"]
    used = run("use", tmp_path / "artifact")
    assert used["state"] == "validated"
    assert used["equal"] == [True] * 4
    assert set(used["texts"]) == {"eager", "thunder"}
    assert set(used["texts"].values()) == {1.0}
    steps = [used["validated"], *used["generated"]]
    for before, after in pairwise(steps):
        assert after["replays"] - before["replays"] >= TOKENS - 2, (
            "of the prompt and the tokens, two run without a graph"
        )
        assert after["records"] - before["records"] <= 1
    assert used["measured"]["replays"] > steps[-1]["replays"]
    for counts in (made, *steps, used["measured"]):
        assert set(counts["launched"]) == KERNELS
        assert counts["replays"] >= counts["records"] > 0
        assert (counts["copied"], counts["failures"]) == (0, 0)
