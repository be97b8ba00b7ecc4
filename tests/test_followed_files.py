"""The number of files that a reader follows from a call to its result.

A reader finds how a result is made by the call stacks at the events that make the result: an operation is recorded, a
trace is built, a compiled function runs, and a stage of a command begins. The followed files are Thunder's files with a
function on one of these stacks. Files that only answer a question, such as which guard a read needs, are not counted.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import thunder_core as thunder
from tests.readme import ROOT
from thunder_cli.main import main
from thunder_core.backend.runtime.program import Program
from thunder_core.tracing.capture.recorded_lines import RecordedLines
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.pipeline.session import clock

MOST_FILES_OF_A_FIRST_CALL = 35
MOST_FILES_OF_OPTIMIZE = 70
FOLDERS = tuple(f"{ROOT / folder}/" for folder in ("thunder_core", "thunder_cli", "executors", "recipes"))


class FollowedFiles:
    """Thunder's files with a function on the call stack at an event."""

    def __init__(self) -> None:
        self.files: set[str] = set()

    def note_stack(self) -> None:
        """Add the files on the current call stack."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            filename = frame.f_code.co_filename
            if filename.startswith(FOLDERS):
                self.files.add(str(Path(filename).relative_to(ROOT)))
            frame = frame.f_back

    def at(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that notes the call stack and then calls `function`."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.note_stack()
            return function(*args, **kwargs)

        return call


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> FollowedFiles:
    """The files that are followed during a test."""
    followed, build_function = FollowedFiles(), Program.build_function
    monkeypatch.setattr(RecordedLines, "append", followed.at(RecordedLines.append))
    monkeypatch.setattr(Trace, "__init__", followed.at(Trace.__init__))
    monkeypatch.setattr(clock, "mark_progress", followed.at(clock.mark_progress))
    monkeypatch.setattr(Program, "build_function", lambda program, name: followed.at(build_function(program, name)))
    return followed


def test_first_call_is_followed_through_few_files(followed: FollowedFiles) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return (x * 2).sin() + 1

    thunder.jit(program)(torch.ones(3))
    assert {
        "thunder_core/compilation/compiler/compiler.py",
        "thunder_core/frontend/acquire/acquire.py",
        "thunder_core/frontend/interpreter/machine.py",
        "thunder_core/tracing/capture/recorder.py",
        "thunder_core/passes/transforms/dce.py",
        "thunder_core/backend/claiming/claim.py",
        "thunder_core/backend/runtime/program.py",
    } <= followed.files
    assert len(followed.files) <= MOST_FILES_OF_A_FIRST_CALL, sorted(followed.files)


def test_optimize_is_followed_through_few_files(followed: FollowedFiles, tmp_path: Path) -> None:
    size = ("--runs", "2", "--warmup", "0", "--validate-inputs", "2", "--seq", "8")
    assert main(["optimize", "--recipe", "hf-llama", "--out", str(tmp_path / "out"), "--quiet", *size]) == 0
    assert {
        "thunder_cli/commands/optimize.py",
        "thunder_core/workflow/pipeline/optimization.py",
        "thunder_core/workflow/pipeline/session/session.py",
        "thunder_core/compilation/compiler/compiler.py",
        "thunder_core/workflow/validation/comparison.py",
        "thunder_core/workflow/benchmark/measurement.py",
    } <= followed.files
    assert len(followed.files) <= MOST_FILES_OF_OPTIMIZE, sorted(followed.files)
