"""Watchers of a run, which are told of each stage as it begins, moves and ends."""

from __future__ import annotations

from typing import Protocol

CHECK_RECIPE = "check the recipe"
STAGES = ("load", CHECK_RECIPE, "acquire", "transform", "compile", "validate", "benchmark", "write")
EVALUATE = "evaluate"  # a stage that is there where samples to judge by were named


class Progress(Protocol):
    """Somebody who watches; may raise KeyboardInterrupt."""

    def begin(self, stage: str) -> None:
        """A stage of `STAGES` begins."""

    def advance(self, done: int, total: int) -> None:
        """Note how much of the current stage is done."""

    def end(self, stage: str, seconds: float) -> None:
        """The stage has ended, this many seconds after it began."""


class Unwatched:
    """Nobody watches."""

    def begin(self, stage: str) -> None:
        """Nothing."""

    def advance(self, done: int, total: int) -> None:
        """Nothing."""

    def end(self, stage: str, seconds: float) -> None:
        """Nothing."""
