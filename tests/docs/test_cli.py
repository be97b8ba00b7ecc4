"""The page about the command line matches the commands, and its examples are valid."""

from __future__ import annotations

import re
import shlex

import pytest

from docs import cli
from tests.readme import ROOT
from thunder_cli.main import main
from thunder_cli.settings import read_settings
from thunder_core.foundation import plugins


def test_the_page_is_up_to_date():
    assert cli.PAGE.read_text(encoding="utf-8") == cli.render(), "run `make docs`"


def test_every_command_is_on_the_page():
    text = cli.render()
    assert all(f"## `thunder {name}" in text for name in plugins.names("commands"))


def test_every_row_of_a_table_has_two_cells():
    rows = [line for line in cli.render().splitlines() if line.startswith("| ")]
    assert len(rows) > 100
    assert [row for row in rows if len(re.findall(r"(?<!\\)\|", row)) != 3] == []


def test_the_example_of_a_file_is_valid(tmp_path):
    (tmp_path / "run.toml").write_text(re.search(r"```toml\n(.*?)```", cli.HEAD, re.DOTALL).group(1))
    assert read_settings(tmp_path / "run.toml").get("recipe") == "hf-llama3"


PAGES = (
    "README.md",
    "docs/training.md",
    "docs/inspect-trace.md",
    "docs/cli.md",
    "docs/benchmark.md",
    "docs/tutorial.md",
)
GROUPS = ("cache", "keys", "recipes")  # commands with subcommands
TEXT = "\n".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)


@pytest.mark.parametrize("line", dict.fromkeys(re.findall(r"^(?:\$ |    )?(thunder [a-z].*)$", TEXT, re.MULTILINE)))
def test_every_example_is_understood(line, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line.partition("#")[0].partition(">")[0])[1:]
    inner = words[1:2] if words[0] in GROUPS and words[1:] and not words[1].startswith("-") else []
    assert main([words[0], *inner, "--help"]) == 0
    known = set(re.findall(r"-{1,2}[a-z][a-z-]*", capsys.readouterr().out))
    assert {word for word in words if word.startswith("-")} <= known
