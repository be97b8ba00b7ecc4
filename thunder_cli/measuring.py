"""What becomes of a measurement: written, drawn, printed, and held against what was required of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from thunder_cli.console import print_document, say, stderr, stdout
from thunder_cli.gates import allowed
from thunder_cli.views.bench import comparison_view, suite_view
from thunder_cli.views.bench_plot import draw_suite
from thunder_cli.wishes import Wishes
from thunder_core.benchmark import (
    BenchmarkSuite,
    Comparison,
    check_against_baseline,
    compare_with_baseline,
    require_speedup,
    write_suite,
)
from thunder_core.errors import SpeedupMissed
from thunder_core.pipeline.calamity import calamities
from thunder_core.report import render_benchmark_markdown, render_csv

TEXTS: Mapping[str, Callable[[BenchmarkSuite], str]] = {"csv": render_csv, "markdown": render_benchmark_markdown}
SUFFIXES = {".csv": "csv", ".md": "markdown"}  # of --out; all others are JSON


def finish(suite: BenchmarkSuite, earlier: BenchmarkSuite | None, wishes: Wishes, subject: str) -> None:
    """Write, draw and print a measurement; raises where a gate does not hold, which `--json` tells alone."""
    keep(suite, wishes)
    rows = [] if earlier is None else compare_with_baseline(suite, earlier, allowed(wishes))
    missed = missed_by(suite, wishes, subject)
    if not (wishes.style == "json" and (missed or any(row.too_slow for row in rows))):
        show(suite, rows, wishes)
    if earlier is not None:
        check_against_baseline(suite, earlier, allowed(wishes))
    if missed:
        raise missed


def missed_by(suite: BenchmarkSuite, wishes: Wishes, subject: str) -> SpeedupMissed | None:
    """The error for a speed-up that was required and is not shown."""
    try:
        if wishes.require_speedup is not None:
            require_speedup(suite, wishes.require_speedup, subject)
    except SpeedupMissed as error:
        return error
    return None


def keep(suite: BenchmarkSuite, wishes: Wishes) -> None:
    """Write the files that were asked for."""
    with calamities(lambda: "write the result"):
        if wishes.out is not None:
            style = SUFFIXES.get(wishes.out.suffix.lower())
            if style is None:
                write_suite(suite, wishes.out)
            else:
                wishes.out.write_text(TEXTS[style](suite), encoding="utf-8")
        if wishes.plot is not None:
            draw_suite(suite, wishes.plot)


def show(suite: BenchmarkSuite, rows: Sequence[Comparison], wishes: Wishes) -> None:
    """Print the measurements, as JSON that `--baseline` reads, as text or as tables, and the comparisons."""
    console = stdout()
    if wishes.style == "json":
        print_document(suite.model_dump_json(indent=2))
    elif wishes.style in TEXTS:
        say(TEXTS[wishes.style](suite), end="")
    else:
        console.print(suite_view(suite, width=console.width))
    if rows:
        (console if wishes.style == "table" else stderr(quiet=wishes.quiet)).print(comparison_view(rows))
