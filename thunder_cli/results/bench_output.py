"""The outputs and requirements of a measurement, from options that are checked before anything is measured."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from thunder_cli.options import OUTPUT, STYLES
from thunder_core.foundation.errors import BadOption, OutputNotWritable
from thunder_core.foundation.options import option, same_option
from thunder_core.foundation.similar_names import unknown_name
from thunder_core.foundation.storage.manifest import require_outside_artifacts
from thunder_core.workflow.pipeline.request.request import Request

PLOT_SUFFIXES = (".svg", ".png", ".pdf", ".html")


@dataclass(frozen=True)
class BenchOutput:
    """The options for the outputs and requirements of a measurement."""

    out: Path | None = option(
        None, Path, short="o", metavar="FILE", help="File to write the result to: .json, .csv or .md."
    )
    plot: Path | None = option(None, Path, metavar="FILE", help="File to write a plot to: .svg, .png, .pdf or .html.")
    baseline: Path | None = option(None, Path, metavar="FILE", help="Earlier result file to compare with.")
    fail_above: str | None = option(
        None,
        metavar="P%",
        help="Exit with status 5 if a contender is more than P% slower than in --baseline. Each time is divided by the "
        "time of the first contender of --against before the comparison",
        default_text="5%",
    )
    require_speedup: float | None = same_option(
        Request,
        "require_speedup",
        help="Exit with status 5 unless the speed-up over the first contender is at least X. The whole 95% confidence "
        "interval must be at least X, and the measurement must not be unstable.",
    )
    style: str = option(
        "table",
        name="format",
        metavar="NAME",
        help="Output format: table, csv or markdown",
        panel=OUTPUT,
        completion="styles",
    )
    quiet: bool = False

    def check(self) -> None:
        """Raise an error for an unknown format, files that cannot be written, and options that need another option."""
        if self.style not in (*STYLES, "json"):
            raise unknown_name("format", self.style, STYLES)
        for file in (self.out, self.plot):
            require_writable(file, PLOT_SUFFIXES if file is self.plot else None)
        if self.fail_above is not None and self.baseline is None:
            raise BadOption("--fail-above was given without --baseline", fix="pass the earlier result with --baseline")


def require_writable(file: Path | None, suffixes: tuple[str, ...] | None) -> None:
    """Raise `BadOption` for a suffix not among `suffixes`, and `OutputNotWritable` for a file that cannot be written.

    `suffixes` are those of `--plot`; None allows all. A file inside an artifact is refused.
    """
    if file is None:
        return
    if suffixes is not None and file.suffix.lower() not in suffixes:
        raise BadOption(f"--plot {file} has an unknown suffix", fix=f"use one of: {', '.join(suffixes)}")
    require_outside_artifacts(file)
    if not file.parent.is_dir() or file.is_dir() or not os.access(file.parent, os.W_OK):
        raise OutputNotWritable(f"{file} cannot be written", fix="name a file in a writable folder")
    if file.exists() and not os.access(file, os.W_OK):
        raise OutputNotWritable(f"{file} exists and is not writable", fix="name another file, or run chmod u+w on it")
