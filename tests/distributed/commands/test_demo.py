"""The command of `make demo-distributed`, with torchrun: it optimizes a training step on two processes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.distributed.commands.commands import QUICK
from thunder_core.workflow.artifact.format.read import open_artifact

ROOT = Path(__file__).parents[3]
TIME_LIMIT = 200.0  # seconds
INSTALLED = ".venv/.installed-for-use"  # which `make install` creates


def run(command: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """The status and the output of a command, whose processes end with it."""
    with subprocess.Popen(
        command, cwd=folder, env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        try:
            output, _ = process.communicate(timeout=TIME_LIMIT)
            return process.returncode, output
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_demo_writes_an_artifact_for_two_ranks(tmp_path: Path) -> None:
    out = tmp_path / "demo.thunder"
    make = ["make", "--dry-run", f"--assume-old={INSTALLED}", "demo-distributed", f"DISTRIBUTED_OUT={out}"]
    printed = subprocess.run(make, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    (torchrun, *arguments), (_, report) = shlex.split(printed[0]), shlex.split(printed[-1])
    assert torchrun == ".venv/bin/torchrun"
    assert report == f"The report: {out}/report.html"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *arguments, *QUICK]
    status, output = run(command, tmp_path, environment)
    assert status == 0, output
    manifest = open_artifact(out).manifest
    assert manifest.group is not None
    assert (manifest.group.recipe, manifest.group.size, manifest.train) == ("fsdp", 2, True)
    assert (out / "report.html").is_file()
    assert str(out / "report.html") in output
