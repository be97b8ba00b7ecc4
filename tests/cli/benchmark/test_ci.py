"""Checks for continuous integration: JUnit files, GitHub annotations and step summaries, and the key for kernels."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from junitparser import Error, Failure, JUnitXml

from tests.cli.small import QUICK
from thunder_cli.cache_key import cache_key
from thunder_cli.ci.ci_report import SUMMARY_VARIABLE, CiReport, annotation
from thunder_core.foundation.errors import OutOfTolerance

FEW = (*QUICK, "--validate-inputs", 1, "--quiet")


def cases(file: Path) -> dict[str, list]:
    (suite,) = JUnitXml.fromfile(str(file))
    return {case.name: case.result for case in suite}


@pytest.fixture
def summary(here, monkeypatch) -> Path:
    file = here / "summary.md"
    monkeypatch.setenv(SUMMARY_VARIABLE, str(file))
    return file


def test_an_optimization_reports_each_output_and_its_speed(thunder, here, llama, summary):
    done = thunder("optimize", llama, "-r", "hf-llama", *FEW, "--out", "a", "--junit", "j.xml", "--github")
    assert done.status == 0, done.err
    found = cases(here / "j.xml")
    assert "logits: matches eager PyTorch" in found
    assert any("thunder is " in name for name in found)
    assert not any(found.values())
    assert "logits" in summary.read_text()
    assert "::error" not in done.out + done.err
    again = thunder("validate", "a", "--junit", "v.xml", "--github", "--json", "--quiet", "--validate-inputs", 1)
    assert again.status == 0
    assert again.json["schema"] == "thunder.validate/1"
    assert "logits: matches eager PyTorch" in cases(here / "v.xml")
    assert thunder("verify", "a", "--junit", "w.xml").status == 0
    assert cases(here / "w.xml") == {"verify": []}


def test_an_error_is_a_failed_case_and_an_annotation(thunder, here, summary):
    done = thunder("validate", "nothing", "--junit", "j.xml", "--github")
    assert done.status == 6
    ((name, (result,)),) = cases(here / "j.xml").items()
    assert (name, type(result), result.type) == ("validate", Failure, "TH0601")
    assert "::error title=thunder validate TH0601::validate: " in done.err
    assert done.out == ""
    assert "**failed**: `validate`" in summary.read_text()


def test_failure_that_is_no_gate_is_a_junit_error(thunder, here):
    assert thunder("optimize", "nothing", "--junit", "j.xml").status == 2
    ((_, (result,)),) = cases(here / "j.xml").items()
    assert (type(result), result.type) == (Error, "TH0204")


def test_a_recipe_that_would_end_the_process_is_a_failed_case(thunder, here):
    (here / "mine.py").write_text("import sys\nsys.exit(0)\n")
    assert thunder("optimize", "--recipe", "mine.py", "--junit", "j.xml").status == 2
    ((_, (result,)),) = cases(here / "j.xml").items()
    assert (type(result), result.type) == (Error, "TH0219")


@pytest.mark.parametrize("file", ["missing/j.xml", "."])
def test_a_file_that_cannot_be_made_is_refused_before_anything_runs(thunder, here, file):
    done = thunder("optimize", "nothing", "--junit", file)
    assert (done.status, "TH0207" in done.err) == (2, True)
    assert list(here.iterdir()) == []


def test_github_is_refused_outside_of_a_step(thunder, monkeypatch):
    monkeypatch.delenv(SUMMARY_VARIABLE, raising=False)
    done = thunder("verify", "nothing", "--github")
    assert (done.status, "TH0201" in done.err, SUMMARY_VARIABLE in done.err) == (2, True, True)


def test_characters_of_a_command_are_escaped():
    assert annotation("a:b,c", "50% of\r\nlines: x") == "::error title=a%3Ab%2Cc::50%25 of%0D%0Alines: x"


def test_control_characters_reach_no_file_and_no_terminal(tmp_path, capsys):
    report = CiReport("validate")
    report.note("a\x1b[31m", ["b\x00\x07", "`c`"])
    report.note_error(OutOfTolerance("d\x1b", fix="e"))
    report.write_junit(tmp_path / "j.xml")
    report.write_github(tmp_path / "s.md")
    for text in (capsys.readouterr().err, (tmp_path / "s.md").read_text(), (tmp_path / "j.xml").read_text()):
        assert not set(text) & set("\x1b\x00\x07")
    assert len(cases(tmp_path / "j.xml")) == 2


def test_the_key_is_the_same_in_another_process(thunder):
    assert thunder("cache", "key").out.strip() == cache_key()
    assert thunder("cache", "key", "--json").json["key"] == cache_key()
    program = "import sys; from thunder_cli.cache_key import cache_key; print(cache_key())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == cache_key()
    assert set(cache_key()) <= set("abcdefghijklmnopqrstuvwxyz0123456789.-_")
