"""The commands of the Hopper recipe on a GPU, as a user runs them, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
HOPPER = ("optimize", "--recipe", "hf-llama3-hopper")
SHORT = ("--prompt-length", "32", "--new-tokens", "16")
WITHOUT_GPU = {"CUDA_VISIBLE_DEVICES": ""}


def thunder(folder: Path, *arguments: str, **variables: str) -> str:
    """Run a command in a folder, and return its output."""
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths, **variables}
    environment.pop("TRITON_INTERPRET", None)
    command = [sys.executable, "-m", "thunder_cli.main", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, f"thunder {' '.join(arguments)}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(autouse=True)
def hopper() -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("for Hopper and later")


def test_doctor_finds_executors_that_work_on_the_gpu(tmp_path: Path) -> None:
    states = {check["name"]: check["state"] for check in json.loads(thunder(tmp_path, "doctor", "--json"))["checks"]}
    assert {states[f"executor {name}"] for name in ("torch", "inductor", "triton", "cudagraphs")} == {"ok"}


@pytest.mark.parametrize(
    "options",
    [
        ("--strict",),
        ("--train",),
        ("--dynamic", "seq=2:512"),
        ("--task", "generate", *SHORT),
        ("--recipe", "int8-weight-only"),
        ("--recipe", "int4-weight-only"),
        ("--recipe", "int8-dynamic"),
        ("--recipe", "fp8"),
        ("--cache", "64"),
    ],
    ids=lambda options: " ".join(options[:2]).replace("--", ""),
)
def test_the_model_is_optimized_validated_and_loaded(tmp_path: Path, options: tuple[str, ...]) -> None:
    thunder(tmp_path, *HOPPER, *options, "--out", "made", "--include-weights")
    assert "validated" in thunder(tmp_path, "validate", "made")


@pytest.mark.parametrize("task", [(), ("--task", "generate", *SHORT)], ids=["call", "generate"])
def test_an_artifact_for_a_missing_gpu_is_validated_on_the_gpu(tmp_path: Path, task: tuple[str, ...]) -> None:
    thunder(tmp_path, *HOPPER, "--target", "sm_90", *task, "--out", "made", **WITHOUT_GPU)
    assert "validated" in thunder(tmp_path, "validate", "made")


@pytest.mark.parametrize("recipe", ["default", "reduce-overhead"])
def test_other_recipes_use_the_gpu(tmp_path: Path, recipe: str) -> None:
    thunder(tmp_path, "optimize", "--recipe", recipe, "--out", "made")
    assert "cuda" in thunder(tmp_path, "inspect-trace", "made")
