"""The progress of a run on stderr: a bar for each stage on a terminal, otherwise a line for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, SpinnerColumn, Task, TaskID, TextColumn
from rich.progress import Progress as RichProgress
from rich.text import Text

from thunder_core.foundation.time_format import format_time
from thunder_core.workflow.pipeline import STAGES, Progress

WIDTH = max(map(len, STAGES))


class Elapsed(ProgressColumn):
    """The elapsed time of a stage."""

    def render(self, task: Task) -> Text:
        """Return the time, dim while the stage runs."""
        elapsed = task.fields.get("seconds") or task.elapsed or 0.0
        return Text(format_time(elapsed).rjust(8), "cyan" if task.finished else "dim")


class Bars:
    """A bar for each stage."""

    def __init__(self, bars: RichProgress) -> None:
        self.bars = bars
        self.current: TaskID | None = None

    def begin(self, stage: str) -> None:
        """Add the stage's bar, which pulses until its length is known."""
        self.current = self.bars.add_task(stage.ljust(WIDTH), total=None)

    def advance(self, done: int, total: int) -> None:
        """Update the bar."""
        if self.current is not None:
            self.bars.update(self.current, completed=done, total=total)

    def end(self, stage: str, seconds: float) -> None:
        """Fill the bar, and write the stage's time next to it."""
        if self.current is not None:
            name = stage.ljust(WIDTH)
            self.bars.update(self.current, description=name, completed=1, total=1, seconds=seconds)
            self.current = None


class StageLines:
    """A line for each completed stage."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def begin(self, stage: str) -> None:
        """Print nothing yet."""

    def advance(self, done: int, total: int) -> None:
        """Print nothing: a log needs no steps."""

    def end(self, stage: str, seconds_taken: float) -> None:
        """Print the stage and its time."""
        self.console.print(f"{stage:<{WIDTH}}  {format_time(seconds_taken)}")


@contextmanager
def show_progress(console: Console) -> Iterator[Progress]:
    """Show the progress on this console while the block runs."""
    if not console.is_terminal or console.quiet:
        yield StageLines(console)
        return
    columns = (
        SpinnerColumn(finished_text="[green]✓"),
        TextColumn("{task.description}", markup=False),
        BarColumn(32),
        Elapsed(),
    )
    with RichProgress(*columns, console=console) as bars:
        yield Bars(bars)
