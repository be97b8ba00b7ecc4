"""Standalone programs: the distributions whose versions are compared."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from thunder_core.workflow.artifact.standalone import standalone
from thunder_core.workflow.artifact.standalone.standalone import (
    ENVIRONMENT_PREFIXES,
    check_standalone,
    related_distributions,
    variables_here,
)

REQUIREMENTS = ["torch>=2", 'kernels ; extra == "device"', 'pytest ; extra == "dev-torch"', 'ruff ; extra == "quality"']


def test_distributions_of_development_extras_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: REQUIREMENTS)
    assert related_distributions(["library"]) == {"library", "torch", "kernels"}


def test_a_distribution_that_is_not_installed_requires_nothing() -> None:
    assert related_distributions(["no-such-distribution"]) == {"no-such-distribution"}


def test_environment_variables_are_kept_as_a_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [variable for variable in os.environ if variable.startswith(ENVIRONMENT_PREFIXES)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TRANSFORMERS_CACHE", "/home/jane/secret")  # the location of files has no influence on a model
    assert variables_here() == {}
    found = []
    for value in ("/home/jane/1", "/home/jane/0"):
        monkeypatch.setenv("USE_SOMETHING", value)
        found.append(variables_here())
    assert found[0].keys() == {"USE_SOMETHING"}
    assert found[0] != found[1]
    assert "jane" not in str(found)


def test_nothing_of_the_current_folder_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted.py").write_text("print('planted')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(standalone, "is_worth_a_check", lambda artifact: True)
    monkeypatch.setattr(standalone, "CHECK_PROGRAM", "import planted")
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    statuses = []
    run = subprocess.run

    def noting(command: list[str], **options: Any) -> None:
        statuses.append(run(command, **{**options, "check": False}).returncode)
        raise OSError

    monkeypatch.setattr(subprocess, "run", noting)
    assert check_standalone(SimpleNamespace(folder=tmp_path)) is None
    assert statuses == [1]
