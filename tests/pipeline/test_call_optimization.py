"""Optimization of single calls of models whose calls change after the first one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from thunder_core.passes.recipe import Recipe, Transform
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES
from thunder_core.workflow.pipeline import Request, optimize


def note_first_call(module: Any, args: Any) -> None:
    """Set an attribute if it is missing."""
    if not hasattr(module, "was_called"):
        module.was_called = True


@dataclass(frozen=True)
class NoteFirstCall(Transform):
    """Add a hook to the model that sets an attribute in the first call."""

    def __call__(self, trace: Trace) -> Trace:
        return trace

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        model.register_forward_pre_hook(note_first_call)
        return model


class Noting(Recipe):
    """A recipe whose first program serves a single call."""

    executors = ("torch",)

    def setup_transforms(self) -> tuple[Transform, ...]:
        return (NoteFirstCall(),)


def test_the_program_that_serves_later_calls_is_timed(tmp_path: Path) -> None:
    model = ModelRequest(sample=SAMPLES["bert"])
    asked = Request(recipe=Noting, model=model, out=tmp_path / "out", seq=8, runs=2, warmup=0)
    report = optimize(asked).report
    assert report.programs == 2
    assert sum(executor.time_share or 0 for executor in report.executors) > 0.9
