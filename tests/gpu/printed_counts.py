"""The counts that a script prints for a Llama of 1B parameters on an absent GPU, read by tests from a new process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.gpu.decode_counts import LAYERS

ROOT = Path(__file__).resolve().parents[2]
FEW = 2  # layers, of a model that shows by its difference what a layer costs


def printed_counts(module: str) -> dict[str, Any]:
    """Return the counts that a script prints for few layers and for all layers.

    Triton's interpreter, which the tests enable, compiles nothing.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, ROOT / "executors", ROOT / "recipes")))
    command = [sys.executable, "-m", module, str(FEW), str(LAYERS)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
