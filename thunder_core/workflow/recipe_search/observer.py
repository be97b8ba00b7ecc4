"""Observers of a search, which are notified when a trial begins and ends."""

from __future__ import annotations

from typing import Protocol

from thunder_core.workflow.report.search import SearchCandidate


class SearchObserver(Protocol):
    """An observer of a search; it may raise `KeyboardInterrupt`."""

    def begin_trial(
        self, name: str, position: tuple[int, int], leader: SearchCandidate | None, seconds_left: float
    ) -> None:
        """Handle the start of a trial: the candidate, its position in the stage, the leader and the seconds left."""

    def end_trial(self, row: SearchCandidate, leader: SearchCandidate | None, seconds_left: float) -> None:
        """Handle the end of a trial: its result, the leader now and the seconds left."""


class SilentObserver:
    """An observer that ignores all events."""

    def begin_trial(
        self, name: str, position: tuple[int, int], leader: SearchCandidate | None, seconds_left: float
    ) -> None:
        """Ignore the start of a trial."""

    def end_trial(self, row: SearchCandidate, leader: SearchCandidate | None, seconds_left: float) -> None:
        """Ignore the end of a trial."""
