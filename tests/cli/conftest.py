"""Running the command line inside the tests' own process."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from thunder_cli.main import main


@dataclass(frozen=True)
class Result:
    """What a command gave: its exit status, and what it wrote."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Thunder = Callable[..., Result]


@pytest.fixture
def thunder(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Thunder:
    """Run `thunder ARGUMENTS...` in an empty working folder; `here` is that folder."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setenv("DISABLE_TELEMETRY", "1")

    def run(*arguments: object) -> Result:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The working folder of `thunder`."""
    return tmp_path / "here"
