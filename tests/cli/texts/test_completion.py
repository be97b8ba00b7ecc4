"""Shell completion as `thunder --install-completion` sets it up."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

COMPLETE = """
import sys
from thunder_cli.main import main
status = main([])
assert "torch" not in sys.modules
sys.exit(status)
"""


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("thunder opt", ["optimize"]),
        ("thunder optimize --recipe hf-llama3", ["hf-llama3", "hf-llama3-hopper"]),
        ("thunder bench --task text-g", ["text-generation"]),
        ("thunder inspect-trace --mod", ["--module"]),
    ],
)
def test_the_shell_is_offered_names(line, offered):
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    environment = {**os.environ, "_THUNDER_COMPLETE": "complete_bash", **words}
    command = [sys.executable, "-c", COMPLETE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == offered
