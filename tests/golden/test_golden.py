"""The traces of small programs at every stage, beside their text in `__snapshots__`: whatever changes them shows here.

`make golden` writes the texts anew. The first stage of each trace is there as a whole, every later one as its
difference to the stage before, so that a file tells what each step does.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from syrupy.assertion import SnapshotAssertion
from syrupy.extensions.single_file import SingleFileSnapshotExtension, WriteMode

from tests.golden.programs import PROGRAMS
from thunder_core.compiler import last_program
from thunder_core.run.program import Program, Stage

TRACES = ("prologue", "computation", "tail", "backward", "epilogue")
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


def described(program: Program) -> str:
    """Every stage of every trace of a program, without the places that change when a program is added."""
    parts = [f"recorded by autograd: {program.recorded}"] if program.recorded else []
    for name in TRACES:
        parts.extend(stages_described(program.stages_of(name)))
    text = "\n".join(parts).replace(f"{ROOT}/", "")
    return re.sub(r"[\w/]*golden/programs\.py:\d+", "golden/programs.py", text)


def stages_described(stages: list[Stage]) -> Iterator[str]:
    """The stages of one trace: the first as a whole, and the difference that each later one makes."""
    before: list[str] = []
    for number, stage in enumerate(stages):
        text = str(stage.trace).splitlines()
        differences = list(difflib.unified_diff(before, text, n=0, lineterm=""))[2:]
        yield f"==== {stage.trace.name}, stage {number}: {stage.trace.made_by} ===="
        yield "\n".join((line for line in differences if not line.startswith("@@")) if before else text)
        yield ""
        before = text


@pytest.mark.skipif(not runs_as_written(), reason="the texts are of Python 3.11 and the versions in constraints.txt")
@pytest.mark.parametrize("name", PROGRAMS)
def test_traces(name: str, snapshot: SnapshotAssertion) -> None:
    torch.manual_seed(0)
    assert described(last_program(PROGRAMS[name]())) == snapshot(extension_class=TraceText)
