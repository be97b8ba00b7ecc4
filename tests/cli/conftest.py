"""Run the command line inside the tests' own process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from tests.cli.small import Result, save_small_model
from thunder_cli.app import build_app
from thunder_cli.main import main

Thunder = Callable[..., Result]


@functools.cache
def command() -> Any:
    """The command-line application, built once as in a process of a user. Otherwise each call would build it again."""
    return get_command(build_app())


@pytest.fixture
def thunder(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Thunder:
    """Run `thunder ARGUMENTS...` in an empty working folder; `here` is that folder."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setattr("thunder_cli.main.build_app", command)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setenv("DISABLE_TELEMETRY", "1")

    def run(*arguments: object) -> Result:
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert not [line for line in f"{captured.out}{captured.err}".splitlines() if line.endswith(" ")]
        return Result(status, captured.out, captured.err)

    return run


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The working folder of `thunder`."""
    return tmp_path / "here"


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """Use one thread: the models are too small for more."""


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama in Hugging Face layout. Tests must not change it."""
    return save_small_model(tmp_path_factory.mktemp("models") / "small-llama")
