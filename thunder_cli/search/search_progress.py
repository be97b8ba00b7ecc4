"""The progress of a search on stderr: the current candidate, the leader and the remaining time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from thunder_cli.search.views import lead_text, trial_text
from thunder_cli.views.quantity import format_duration
from thunder_core.workflow.recipe_search.observer import SearchObserver
from thunder_core.workflow.report import SearchCandidate


@dataclass
class SearchLines:
    """An observer that prints a line for each finished trial, and on a terminal also a line for the running trial."""

    console: Console
    line: RunningLine | None = None

    def begin_trial(
        self, name: str, position: tuple[int, int], leader: SearchCandidate | None, seconds_left: float
    ) -> None:
        """Show the candidate that is tried."""
        if self.line is not None:
            self.line.begin(f"trying {name} ({position[0]} of {position[1]})", lead_text(leader), seconds_left)

    def end_trial(self, row: SearchCandidate, leader: SearchCandidate | None, seconds_left: float) -> None:
        """Print the result of the candidate."""
        leads = "; leads" if leader is not None and leader.name == row.name else ""
        self.console.print(Text.assemble(trial_text(row), leads, (f"; {format_duration(seconds_left)} left", "dim")))


@dataclass
class RunningLine:
    """The line of the running trial; its remaining time is updated continuously."""

    spinner: Spinner = field(default_factory=lambda: Spinner("dots"))
    trial: str = ""
    lead: str = ""
    end: float = 0.0

    def begin(self, trial: str, lead: str, seconds_left: float) -> None:
        """Set the current trial, the leader and the remaining seconds."""
        self.trial, self.lead, self.end = trial, lead, time.monotonic() + seconds_left

    def __rich__(self) -> RenderableType:
        """Return the line with the current remaining time."""
        seconds_left = max(0.0, self.end - time.monotonic())
        parts = [
            self.trial or "starting",
            *([self.lead] if self.lead else []),
            *([f"{format_duration(seconds_left)} left"] * (self.end > 0)),
        ]
        self.spinner.update(text=Text(" · ".join(parts)))
        return self.spinner


@contextmanager
def show_search_progress(console: Console) -> Iterator[SearchObserver]:
    """Show the progress of a search on this console while the block runs."""
    if not console.is_terminal or console.quiet:
        yield SearchLines(console)
        return
    line = RunningLine()
    with Live(line, console=console, refresh_per_second=4, transient=True):
        yield SearchLines(console, line)
    console.print()
