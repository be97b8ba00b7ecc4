"""Observers of a run, to which each stage is reported as it begins, advances and ends."""

from __future__ import annotations

from typing import Protocol

CHECK_RECIPE = "check the recipe"
FIRST_CALLS = "first calls"  # of what is compiled: not for a target, nor in training, whose first call compiles more
STAGES = ("load", CHECK_RECIPE, "trace", "transform", "compile", FIRST_CALLS, "validate", "benchmark", "write")
COMPARE = "compare executors"  # a stage that is there where an executor of the recipe only compares the others
CALIBRATE = "calibrate"  # a stage that is there where a recipe that quantizes is to be calibrated
QUALITY = "quality"  # a stage that is there where a recipe quantizes, and is validated
EVALUATE = "evaluate"  # a stage that is there where samples to judge by were named


class Progress(Protocol):
    """An observer of a run; it may raise `KeyboardInterrupt`."""

    def begin(self, stage: str) -> None:
        """Note that a stage, one of `STAGES` or of those below, has begun."""

    def advance(self, done: int, total: int) -> None:
        """Note how much of the current stage is done."""

    def end(self, stage: str, seconds: float) -> None:
        """Note that a stage has ended, this many seconds after it began."""


class Unwatched:
    """Progress that is reported to nobody."""

    def begin(self, stage: str) -> None:
        """Ignore the beginning of a stage."""

    def advance(self, done: int, total: int) -> None:
        """Ignore how much of a stage is done."""

    def end(self, stage: str, seconds: float) -> None:
        """Ignore the end of a stage."""
