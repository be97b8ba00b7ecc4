"""What is to be done with a measurement, as options say it, checked before anything is imported or measured."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from thunder_core.errors import BadOption, OutputNotWritable
from thunder_core.plugins import unknown_name

PLOTS = (".svg", ".png", ".pdf", ".html")
STYLES = ("table", "csv", "markdown")


@dataclass(frozen=True)
class BenchOutput:
    """What is to be done with a measurement, as the options say it."""

    out: Path | None = None
    plot: Path | None = None
    baseline: Path | None = None
    fail_above: str | None = None
    require_speedup: float | None = None
    style: str = "table"
    quiet: bool = False

    def check(self) -> None:
        """Raise for a form that does not exist, files that cannot be made, and options that lack another."""
        if self.style not in (*STYLES, "json"):
            raise unknown_name("format", self.style, STYLES)
        for file in (self.out, self.plot):
            require_file(file, PLOTS if file is self.plot else None)
        if self.fail_above is not None and self.baseline is None:
            raise BadOption("--fail-above was given without --baseline", fix="name the earlier result with --baseline")


def numbers(option: str, text: str) -> tuple[int, ...]:
    """The numbers in a list such as `1,4,16`; raises `BadOption`."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and word.isascii() and len(word) < 20 for word in words):
        raise BadOption(f"{option} is {text!r}, which is no list of numbers", fix=f"write it as {option} 1,4,16")
    return tuple(dict.fromkeys(int(word) for word in words))


def require_file(file: Path | None, suffixes: tuple[str, ...] | None) -> None:
    """Raise `BadOption` for a suffix that cannot be drawn, `OutputNotWritable` where no file can be made."""
    if file is None:
        return
    if suffixes is not None and file.suffix.lower() not in suffixes:
        raise BadOption(f"--plot {file} has no suffix that can be drawn", fix=f"use one of: {', '.join(suffixes)}")
    if not file.parent.is_dir() or file.is_dir() or not os.access(file.parent, os.W_OK):
        raise OutputNotWritable(f"{file} cannot be written", fix="name a file in a folder that can be written")
