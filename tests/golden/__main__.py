"""The traces of every program as JSON, from a process that has imported and compiled nothing else."""

from __future__ import annotations

import contextlib
import difflib
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from tests.golden.programs import PROGRAMS
from thunder_core.backend.runtime.program import Program, Stage
from thunder_core.compilation.compiler import last_program

TRACES = ("prologue", "computation", "tail", "backward", "epilogue")
ROOT = Path(__file__).parents[2]


def described(program: Program) -> str:
    """Every stage of every trace of a program, without folders and lines that depend on the installation."""
    parts = [f"recorded by autograd: {program.no_backward_reason}"] if program.no_backward_reason else []
    for name in TRACES:
        parts.extend(stages_described(program.stages_of(name)))
    text = "\n".join(parts).replace(f"{ROOT}/", "")
    text = re.sub(r"'[^']*/site-packages/", "'", text)
    return re.sub(r"[\w/]*golden/programs\.py:\d+", "golden/programs.py", text)


def stages_described(stages: list[Stage]) -> Iterator[str]:
    """The stages of one trace: the first in full, and each later stage as its difference from the previous one."""
    before: list[str] = []
    for number, stage in enumerate(stages):
        text = str(stage.trace).splitlines()
        differences = list(difflib.unified_diff(before, text, n=0, lineterm=""))[2:]
        yield f"==== {stage.trace.name}, stage {number}: {stage.trace.made_by} ===="
        yield "\n".join((line for line in differences if not line.startswith("@@")) if before else text)
        yield ""
        before = text


def main() -> None:
    """Print the texts by the names of the programs."""
    texts: dict[str, str] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        for name, program in PROGRAMS.items():
            torch.manual_seed(0)
            texts[name] = described(last_program(program()))
    json.dump(texts, sys.stdout)


if __name__ == "__main__":
    main()
