"""The progress of a search on stderr: what is tried, what leads and how long is left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from thunder_cli.search.views import found_text, lead_text
from thunder_cli.views.quantity import minutes
from thunder_core.workflow.recipe_search.observer import SearchObserver
from thunder_core.workflow.report import SearchCandidate


@dataclass
class SearchLines:
    """A line for each trial that has ended; on a terminal also one for the trial that runs."""

    console: Console
    line: RunningLine | None = None

    def trying(self, name: str, place: tuple[int, int], leader: SearchCandidate | None, left: float) -> None:
        """Show what is tried."""
        if self.line is not None:
            self.line.begin(f"trying {name} ({place[0]} of {place[1]})", lead_text(leader), left)

    def found(self, row: SearchCandidate, leader: SearchCandidate | None, left: float) -> None:
        """Print what was found out about the candidate."""
        leads = "; leads" if leader is not None and leader.name == row.name else ""
        self.console.print(Text.assemble(found_text(row), leads, (f"; {minutes(left)} left", "dim")))


@dataclass
class RunningLine:
    """The line of the trial that runs, with the time that is left, drawn again while it runs."""

    spinner: Spinner = field(default_factory=lambda: Spinner("dots"))
    trial: str = ""
    lead: str = ""
    end: float = 0.0

    def begin(self, trial: str, lead: str, left: float) -> None:
        """Note what is tried now, and how long is left."""
        self.trial, self.lead, self.end = trial, lead, time.monotonic() + left

    def __rich__(self) -> RenderableType:
        """The line as it is now."""
        left = max(0.0, self.end - time.monotonic())
        parts = [
            self.trial or "starting",
            *([self.lead] if self.lead else []),
            *([f"{minutes(left)} left"] * (self.end > 0)),
        ]
        self.spinner.update(text=Text(" · ".join(parts)))
        return self.spinner


@contextmanager
def observing(console: Console) -> Iterator[SearchObserver]:
    """Show the progress of a search on this console while the block runs."""
    if not console.is_terminal or console.quiet:
        yield SearchLines(console)
        return
    line = RunningLine()
    with Live(line, console=console, refresh_per_second=4, transient=True):
        yield SearchLines(console, line)
    console.print()
