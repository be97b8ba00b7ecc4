"""The options of commands that serve as checks in continuous integration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from thunder_cli.options import OUTPUT
from thunder_core.foundation.options import option


@dataclass(frozen=True)
class CiOptions:
    """The options of every command that serves as a check in continuous integration."""

    junit: Path | None = option(
        None,
        Path,
        metavar="FILE",
        panel=OUTPUT,
        help="File to write the results to, as JUnit XML with a test case for each result.",
    )
    github: bool = option(
        False, bool, panel=OUTPUT, help="Print annotations for GitHub Actions, and write the step's summary."
    )
