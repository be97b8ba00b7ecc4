"""Models that are compiled and trained by the launchers of other libraries equal the models that are not compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FILE = str(Path(__file__).with_name("launched.py"))
ROOT = Path(__file__).parents[3]
ACCELERATE = [
    *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1"),
    *("--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"),
]
CASES = [
    *(("accelerate", way) for way in ("jit", "recipe-ddp")),
    *(("lightning", way) for way in ("jit", "recipe-ddp", "recipe-fsdp")),
]


@pytest.mark.parametrize(("library", "way"), CASES)
def test_compiled_model_is_trained_as_the_model_itself(library: str, way: str, tmp_path: Path) -> None:
    if find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    launcher = ACCELERATE if library == "accelerate" else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", *launcher, FILE, library, way],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("equal") == 2, ran.stdout + ran.stderr
