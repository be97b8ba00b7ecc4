"""Escape sequences in artifacts, models, settings and arguments: no command writes them to the terminal."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.artifact.damages import manifest_of
from tests.cli.small import save_small_model
from tests.report.samples import benchmark
from thunder_cli.views.bench_plot import draw_suite
from thunder_core.foundation.storage.digest import digest_of
from thunder_core.foundation.storage.manifest import FileFacts, text_of
from thunder_core.workflow.artifact.format.manifest import Manifest
from thunder_core.workflow.benchmark import BenchmarkSuite
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES
from thunder_core.workflow.pipeline import Request, optimize

OBEYED = "\x1b[2J\x1b]0;title\x07\x9b31m\u202e\x0c"
COLOURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\]8;[^\x1b]*\x1b\\")  # the sequences that rich writes to a terminal
ALL = ("prologue", "computation", "epilogue")
UNESCAPED = ("trace", "name", "file", "lines_file", "kind", "steps", "files", "digest", "created", "torch", "thunder")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Path:
    """An artifact with valid digests in which every text field contains escape sequences."""
    folder = tmp_path_factory.mktemp("hostile") / "hostile.thunder"
    sample = ModelRequest(sample=SAMPLES["llama"])
    optimize(Request(model=sample, recipe="default", out=folder, seq=8, validate=False, benchmark=False))
    listings = [stage.lines_file for program in manifest_of(folder).programs for stage in program.stages]
    for name in ("report.json", *listings):
        content = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(poisoned(content, LINES if name in listings else REPORT)))
    content = json.loads((folder / "manifest.json").read_text())
    files = {name: facts(folder / name) for name in content["files"]}
    told = poisoned({key: content[key] for key in TOLD if key in content}, UNESCAPED)
    manifest = Manifest.model_validate_json(text_of({**content, **told, "files": files}))
    (folder / "manifest.json").write_bytes(manifest.with_own_digest().to_bytes())
    return folder


TOLD = ("recipe", "options", "subject", "environment", "programs")
REPORT = ("created", "validation_state", "state", "call")
LINES = ("name", "text", "reads", "returns", "constants", "imports")  # code, which is compared with the code that runs


def facts(path: Path) -> dict[str, object]:
    return FileFacts(size=path.stat().st_size, digest=digest_of(path.read_bytes())).model_dump()


def poisoned(value: object, spared: tuple[str, ...]) -> object:
    """Plain data with escape sequences in each text, except under some keys."""
    if isinstance(value, dict):
        return {key: one if key in spared else poisoned(one, spared) for key, one in value.items()}
    if isinstance(value, list):
        return [poisoned(item, spared) for item in value]
    return f"{value}{OBEYED}" if isinstance(value, str) else value


LOOKS = {
    "list": ("inspect-trace", "--list"),
    "list as JSON": ("inspect-trace", "--list", "--json"),
    "list, plain": ("inspect-trace", "--list", "--plain"),
    "trace": ("inspect-trace",),
    "trace as JSON": ("inspect-trace", "--json"),
    "trace, plain": ("inspect-trace", "--plain"),
    "first stage": ("inspect-trace", "--stage", "0"),
    "aten": ("inspect-trace", "--stage", "0", "--level", "aten"),
    "prologue": ("inspect-trace", "--trace", "prologue"),
    "search": ("inspect-trace", "--stage", "0", "--grep", "linear"),
    "search as JSON": ("inspect-trace", "--stage", "0", "--grep", "linear", "--json"),
    "difference": ("inspect-trace", "--diff", "0", "1"),
    "no such stage": ("inspect-trace", "--stage", "nowhere"),
    "no such module": ("inspect-trace", "--module", "nowhere"),
    "no such trace": ("inspect-trace", "--trace", "backward"),
    "executors": ("executors", "--of"),
    "executors as JSON": ("executors", "--json", "--of"),
}


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("look", LOOKS)
def test_an_artifacts(look, terminal, thunder, hostile, monkeypatch):
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")
    command, *rest = LOOKS[look]
    done = thunder(command, *rest, hostile) if rest[-1:] == ["--of"] else thunder(command, hostile, *rest)
    assert done.status in (0, 2)
    assert_nothing_obeyed(done.out + done.err)
    assert look == "no such stage" or "x1b[2J" in done.out + done.err or "u001b[2J" in done.out


def test_a_file_that_is_written(thunder, hostile, here):
    assert thunder("inspect-trace", hostile, "--output", "trace.py").status == 0
    assert_nothing_obeyed((here / "trace.py").read_text())


def assert_nothing_obeyed(text: str) -> None:
    assert COLOURS.sub("", text).replace("\n", "").replace("\t", "").isprintable()


def test_a_models(thunder, tmp_path):
    for number, change in enumerate(({"model_type": OBEYED}, {"architectures": [OBEYED]}, {"hidden_size": OBEYED})):
        folder = save_small_model(tmp_path / f"{number}")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, **change}))
        done = thunder("optimize", folder, "--dry-run")
        assert done.status in (2, 8)
        assert_nothing_obeyed(done.out + done.err)


def test_a_settings_file(thunder, tmp_path):
    for number, text in enumerate(('"re\\u001b[2Jcipe" = "x"', 'recipe = "\\u001b[2J"', 'batch = "\\u009b2J"')):
        (tmp_path / f"{number}.toml").write_text(text)
        for extra in ((), ("--json",)):
            done = thunder("optimize", "--config", tmp_path / f"{number}.toml", *extra)
            assert done.status == 2
            assert_nothing_obeyed(done.out + done.err)


@pytest.mark.parametrize("extra", [(), ("--json",), ("--debug",)])
def test_arguments(thunder, extra):
    """A script may get its arguments from an untrusted source."""
    commands = ("optimize", f"./{OBEYED}"), ("explain", OBEYED), ("recipes", "show", OBEYED), (OBEYED,)
    for words in (*commands, ("bench", "--against", OBEYED)):
        done = thunder(*words, *extra)
        assert done.status != 0
        assert_nothing_obeyed(done.out + done.err)


def test_a_picture(tmp_path):
    """The name is no formula either: matplotlib reads text between two dollar signs as a formula."""
    report = benchmark()
    names = {candidate.name: f"{candidate.name} $\\frac$ {OBEYED}" for candidate in report.candidates}
    candidates = tuple(candidate.model_copy(update={"name": names[candidate.name]}) for candidate in report.candidates)
    told = {"model": f"$x_$ {OBEYED}", "recipe": "$", "dtype": "float32", "batch": "1", "seq": "8"}
    nasty = report.model_copy(update={"candidates": candidates, "configuration": told, "machine": "$"})
    draw_suite(BenchmarkSuite(thunder="1", reports=(nasty,)), tmp_path / "picture.svg")
    text = (tmp_path / "picture.svg").read_text()
    assert_nothing_obeyed(text)
    assert "$\\frac$ \\x1b[2J" in text
