"""The tutorial in docs/tutorial.md: its files are written and its commands run, in the order of the page."""

from __future__ import annotations

import os
import re
import runpy
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from transformers import BertForSequenceClassification

from tests.cli.small import Result
from tests.readme import ROOT

PAGE = ROOT / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
IDS = [101, 7, 42, 102]  # that ask.py sends


def steps() -> Iterator[tuple[str, str]]:
    """The page as files (`file`, content) and commands (command, its output according to the page)."""
    for language, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "python":
            yield "file", text
        else:
            for command in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                line, _, printed = command.partition("\n")
                yield line.strip(), printed


def promised(printed: str) -> set[str]:
    """The first words of the output lines that the page shows for a command."""
    lines = [line.split() for line in printed.splitlines()]
    return {words[0] for words in lines if words and re.fullmatch(r"[A-Za-z][\w.-]*", words[0])}


class Tour:
    """The state of a user who follows the page: a folder, a server, and the output so far."""

    def __init__(self, here: Path, thunder: Callable[..., Result], capsys: pytest.CaptureFixture[str]) -> None:
        self.here, self.thunder, self.capsys = here, thunder, capsys
        self.server: subprocess.Popen[str] | None = None

    def follow(self, command: str, text: str) -> str:
        """Write a file, or run a command and return its output."""
        if command == "file":
            (self.here / text.partition("\n")[0].removeprefix("# ")).write_text(text, encoding="utf-8")
            return text
        program, *words = shlex.split(command)
        return RUN[program](self, words)

    def run_thunder(self, words: list[str]) -> str:
        done = self.thunder(*words)
        assert done.status == 0, done.err
        return done.err + done.out

    def run_python(self, words: list[str]) -> str:
        if words[-1] == "&":
            return self.serve(words[0])
        self.capsys.readouterr()
        runpy.run_path(str(self.here / words[0]), run_name="__main__")
        return self.capsys.readouterr().out

    def serve(self, file: str) -> str:
        """Start the server and return its output when it is ready."""
        path = os.pathsep.join(str(part) for part in (ROOT, ROOT / "executors", ROOT / "recipes"))
        environment = {**os.environ, "PYTHONPATH": path, "CXX": "/bin/false"}  # the server compiles nothing
        command = [sys.executable, file]
        self.server = subprocess.Popen(
            command, cwd=self.here, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.server.stdout is not None
        return self.server.stdout.readline() or self.server.communicate()[1]


RUN: dict[str, Callable[[Tour, list[str]], str]] = {"thunder": Tour.run_thunder, "python": Tour.run_python}


@pytest.fixture
def tour(thunder, here, capsys, monkeypatch) -> Iterator[Tour]:
    """A new user in an empty folder, with separate settings and a separate port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("PORT", str(free.getsockname()[1]))
    monkeypatch.setenv("THUNDER_CONFIG_DIR", str(here.parent / "settings"))
    found = Tour(here, thunder, capsys)
    yield found
    if found.server is not None:
        found.server.kill()
        found.server.communicate()


def test_the_tutorial_works_as_written(tour, here):
    printed = {}
    for command, text in steps():
        printed[command] = found = tour.follow(command, text)
        begins = {line.split()[0] for line in found.splitlines() if line.split()}
        assert command == "file" or promised(text) <= begins, command
    answer = printed["python ask.py"]
    model = BertForSequenceClassification.from_pretrained(here / "bert").eval()
    with torch.no_grad():
        expected = model(torch.tensor([IDS])).logits.softmax(-1)[0]
    torch.testing.assert_close(torch.tensor(eval(answer)), expected, rtol=1e-4, atol=1e-4)


def test_the_tutorial_is_complete():
    commands = [command for command, _ in steps()]
    used = {command.split()[1] for command in commands if command.startswith("thunder")}
    assert used >= {"doctor", "optimize", "inspect-trace", "bench", "validate", "sign", "verify"}
    assert commands.count("python serve.py &") == 1
