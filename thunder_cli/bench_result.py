"""The result of a measurement: written, drawn, printed, and held against what was required of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from thunder_cli.bench_output import BenchOutput
from thunder_cli.console import print_document, say, stderr, stdout
from thunder_cli.gates import allowed_loss
from thunder_cli.views.bench import comparison_view, suite_view
from thunder_cli.views.bench_plot import draw_suite
from thunder_core.benchmark import (
    BenchmarkSuite,
    Comparison,
    check_against_baseline,
    compare_with_baseline,
    require_speedup,
    write_suite,
)
from thunder_core.errors import SpeedupMissed
from thunder_core.pipeline.failures import stage_failures
from thunder_core.report import render_benchmark_markdown, render_csv

TEXTS: Mapping[str, Callable[[BenchmarkSuite], str]] = {"csv": render_csv, "markdown": render_benchmark_markdown}
SUFFIXES = {".csv": "csv", ".md": "markdown"}  # of --out; all others are JSON


def finish_bench(suite: BenchmarkSuite, earlier: BenchmarkSuite | None, output: BenchOutput, subject: str) -> None:
    """Write, draw and print a measurement; raises where a gate does not hold, which `--json` tells alone."""
    write_outputs(suite, output)
    rows = [] if earlier is None else compare_with_baseline(suite, earlier, allowed_loss(output))
    missed = missed_by(suite, output, subject)
    if not (output.style == "json" and (missed or any(row.too_slow for row in rows))):
        print_suite(suite, rows, output)
    if earlier is not None:
        check_against_baseline(suite, earlier, allowed_loss(output))
    if missed:
        raise missed


def missed_by(suite: BenchmarkSuite, output: BenchOutput, subject: str) -> SpeedupMissed | None:
    """The error for a speed-up that was required and is not shown."""
    try:
        if output.require_speedup is not None:
            require_speedup(suite, output.require_speedup, subject)
    except SpeedupMissed as error:
        return error
    return None


def write_outputs(suite: BenchmarkSuite, output: BenchOutput) -> None:
    """Write the files that were asked for."""
    with stage_failures(lambda: "write the result"):
        if output.out is not None:
            style = SUFFIXES.get(output.out.suffix.lower())
            if style is None:
                write_suite(suite, output.out)
            else:
                output.out.write_text(TEXTS[style](suite), encoding="utf-8")
        if output.plot is not None:
            draw_suite(suite, output.plot)


def print_suite(suite: BenchmarkSuite, rows: Sequence[Comparison], output: BenchOutput) -> None:
    """Print the measurements, as JSON that `--baseline` reads, as text or as tables, and the comparisons."""
    console = stdout()
    if output.style == "json":
        print_document(suite.model_dump_json(indent=2))
    elif output.style in TEXTS:
        say(TEXTS[output.style](suite), end="")
    else:
        console.print(suite_view(suite, width=console.width))
    if rows:
        (console if output.style == "table" else stderr(quiet=output.quiet)).print(comparison_view(rows))
