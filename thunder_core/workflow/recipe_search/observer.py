"""Observers of a search, to which each trial is reported as it begins and ends."""

from __future__ import annotations

from typing import Protocol

from thunder_core.workflow.report.search import SearchCandidate


class SearchObserver(Protocol):
    """An observer of a search; it may raise `KeyboardInterrupt`."""

    def trying(self, name: str, place: tuple[int, int], leader: SearchCandidate | None, left: float) -> None:
        """Note that a candidate is tried, its place among all trials of the stage, who leads and the seconds left."""

    def found(self, row: SearchCandidate, leader: SearchCandidate | None, left: float) -> None:
        """Note what a trial has found, who leads now and the seconds left."""


class NobodyObserves:
    """A search that is reported to nobody."""

    def trying(self, name: str, place: tuple[int, int], leader: SearchCandidate | None, left: float) -> None:
        """Ignore the beginning of a trial."""

    def found(self, row: SearchCandidate, leader: SearchCandidate | None, left: float) -> None:
        """Ignore the end of a trial."""
