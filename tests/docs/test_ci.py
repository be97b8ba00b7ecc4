"""The page about continuous integration: its commands exist, and the steps of its GitHub job run in a shell."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from tests.cli.small import save_small_model
from tests.readme import blocks
from thunder_cli.app import build_app

PAGE = "docs/ci.md"
GITHUB, GITLAB = (yaml.safe_load(block) for block in blocks(PAGE, "yaml"))
STEPS = {step["name"]: step["run"] for step in GITHUB["jobs"]["smoke"]["steps"] if "run" in step}


def thunder_commands() -> list[list[str]]:
    """The arguments of every call of `thunder` on the page."""
    lines = [*STEPS.values(), *GITLAB["thunder"]["script"]]
    lines += re.findall(r"^\$ (thunder .*)$", "".join(blocks(PAGE, "console")), re.MULTILINE)
    return [shlex.split(line)[1:] for line in lines if line.startswith("thunder ")]


@pytest.mark.parametrize("arguments", thunder_commands(), ids=lambda arguments: arguments[0])
def test_every_command_takes_its_options(arguments):
    name, *options = arguments
    command = get_command(build_app()).commands[name]
    command.make_context(name, options)


@pytest.mark.slow
def test_the_steps_run(tmp_path):
    save_small_model(tmp_path / "model")
    (tmp_path / "benchmarks").mkdir()
    program = tmp_path / "bin" / "thunder"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m thunder_cli.main "$@"\n')
    program.chmod(0o755)
    root = str(Path(__file__).resolve().parents[2])
    found = {"GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), "GITHUB_OUTPUT": str(tmp_path / "output")}
    sources = os.pathsep.join([root, f"{root}/executors", f"{root}/recipes"])
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **GITHUB["jobs"]["smoke"]["env"], **found, "PATH": path, "PYTHONPATH": sources}

    def run(line: str) -> subprocess.CompletedProcess[str]:
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", line]
        return subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    for name in ("Key of the kernel cache", "Optimize and validate"):
        done = run(STEPS[name])
        assert done.returncode == 0, done.stderr
    assert "key=thunder-" in (tmp_path / "output").read_text()
    assert "logits" in (tmp_path / "summary").read_text()
    assert (tmp_path / "optimize.xml").exists()
    wrong = run(STEPS["Compare the speed with the stored result"])
    assert wrong.returncode == 2, wrong.stderr  # no result has been stored yet
    assert "::error title=thunder bench TH0" in wrong.stderr
