"""The traces of small programs at every stage, compared with their text in `__snapshots__`: every change shows here.

`make golden` writes the texts again. The file of a program has the first stage of each trace in full and every later
stage as its difference from the previous one, so that the file shows the effect of each step.

Python 3.11 writes the texts. Other versions of Python have the same traces but for the prologue, whose guards depend
on the instructions and on the standard library that the interpreter follows.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from tests.golden.programs import PROGRAMS
from tests.processes import run_python

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
TEXTS = Path(__file__).parent / "__snapshots__" / "test_golden"
PROLOGUE = "==== prologue,"


def has_pinned_versions() -> bool:
    """Whether torch and transformers are the pinned versions, whose source lines are in the texts."""
    pins = dict(line.split("==") for line in CONSTRAINTS.read_text().splitlines() if "==" in line)
    return all(pins[name] == version(name).partition("+")[0] for name in ("torch", "transformers"))


IS_PYTHON_OF_TEXTS = sys.version_info[:2] == (3, 11)


def without_prologue(text: str) -> list[str]:
    """The stages of a text without those of the prologue."""
    return [stage for stage in re.split(r"^(?===== )", text, flags=re.MULTILINE) if not stage.startswith(PROLOGUE)]


class TraceText(SingleFileSnapshotExtension):
    """A text file for each program."""

    file_extension = "txt"
    _write_mode = WriteMode.TEXT


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """The texts of all programs from a separate process, because guards depend on the imported modules."""
    done = run_python("-m", "tests.golden", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


pinned = pytest.mark.skipif(not has_pinned_versions(), reason="the texts are of the versions in constraints.txt")


@pytest.mark.source
@pinned
@pytest.mark.skipif(not IS_PYTHON_OF_TEXTS, reason="the prologues of the texts are of Python 3.11")
@pytest.mark.xdist_group("golden")
@pytest.mark.parametrize("name", PROGRAMS)
def test_traces(name: str, texts: dict[str, str], snapshot: SnapshotAssertion) -> None:
    assert texts[name] == snapshot(extension_class=TraceText)


@pytest.mark.source
@pinned
@pytest.mark.skipif(IS_PYTHON_OF_TEXTS, reason="Python 3.11 compares the whole texts")
@pytest.mark.xdist_group("golden")
@pytest.mark.parametrize("name", PROGRAMS)
def test_traces_but_for_the_prologue(name: str, texts: dict[str, str]) -> None:
    written = (TEXTS / f"test_traces[{name}].txt").read_text()
    assert without_prologue(texts[name]) == without_prologue(written)
