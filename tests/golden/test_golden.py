"""The traces of small programs at every stage, compared with their text in `__snapshots__`: every change shows here.

`make golden` writes the texts again. The file of a program has the first stage of each trace in full and every later
stage as its difference from the previous one, so that the file shows the effect of each step.
"""

from __future__ import annotations

import json
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


def runs_as_written() -> bool:
    """Whether this is Python 3.11 with the pinned torch and transformers, whose source lines are in the texts."""
    pins = dict(line.split("==") for line in CONSTRAINTS.read_text().splitlines() if "==" in line)
    installed = {name: version(name).partition("+")[0] for name in ("torch", "transformers")}
    return sys.version_info[:2] == (3, 11) and all(pins[name] == found for name, found in installed.items())


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


@pytest.mark.source
@pytest.mark.skipif(not runs_as_written(), reason="the texts are of Python 3.11 and the versions in constraints.txt")
@pytest.mark.xdist_group("golden")
@pytest.mark.parametrize("name", PROGRAMS)
def test_traces(name: str, texts: dict[str, str], snapshot: SnapshotAssertion) -> None:
    assert texts[name] == snapshot(extension_class=TraceText)
