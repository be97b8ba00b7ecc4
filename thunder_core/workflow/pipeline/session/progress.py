"""Observers of a run, which receive the beginning, progress and end of each stage."""

from __future__ import annotations

from typing import Protocol

CHECK_RECIPE = "check the recipe"
FIRST_CALLS = "first calls"  # the calls after compiling; omitted for a target, and for training, which compiles later
STAGES = ("load", CHECK_RECIPE, "trace", "transform", "compile", FIRST_CALLS, "validate", "benchmark", "write")
COMPARE = "compare executors"  # a stage if an executor of the recipe compares other executors with eager PyTorch
CALIBRATE = "calibrate"  # a stage if a recipe that quantizes is calibrated
QUALITY = "quality"  # a stage if a recipe quantizes and is validated
EVALUATE = "evaluate"  # a stage if there are samples for a metric


class Progress(Protocol):
    """An observer of a run; it may raise `KeyboardInterrupt`."""

    def begin(self, stage: str) -> None:
        """Record that a stage, one of `STAGES` or of the optional stages, has begun."""

    def advance(self, done: int, total: int) -> None:
        """Record the progress of the current stage."""

    def end(self, stage: str, seconds: float) -> None:
        """Record that a stage has ended, this many seconds after it began."""


class SilentProgress:
    """An observer that ignores everything."""

    def begin(self, stage: str) -> None:
        """Ignore the beginning of a stage."""

    def advance(self, done: int, total: int) -> None:
        """Ignore the progress of a stage."""

    def end(self, stage: str, seconds: float) -> None:
        """Ignore the end of a stage."""
