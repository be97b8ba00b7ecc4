"""What becomes of a measurement: written, drawn, printed, and held against what was required of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from thunder_cli.console import plain, print_document, print_json, say, stderr, stdout
from thunder_cli.views.bench import comparison_view, contrast_view, suite_view
from thunder_cli.wishes import Wishes
from thunder_core.benchmark import (
    BenchmarkSuite,
    Comparison,
    check_against_baseline,
    check_gate,
    compare_with_baseline,
    contrast_suites,
    fraction_of,
    read_suite,
    require_speedup,
    write_suite,
)
from thunder_core.errors import BadOption, SpeedupMissed
from thunder_core.report import render_benchmark_markdown, render_csv

TEXTS: Mapping[str, Callable[[BenchmarkSuite], str]] = {"csv": render_csv, "markdown": render_benchmark_markdown}
SUFFIXES = {".csv": "csv", ".md": "markdown"}  # of --out; all others are JSON


def earlier_result(wishes: Wishes, runs: int) -> BenchmarkSuite | None:
    """The baseline, if there is one; raises for what could not be told of a measurement of so many rounds."""
    if wishes.require_speedup is not None:
        check_gate(wishes.require_speedup, runs)
    allowed(wishes)
    return None if wishes.baseline is None else read_suite(wishes.baseline)


def allowed(wishes: Wishes) -> float:
    """How much of a speed-up may be lost."""
    return fraction_of(wishes.fail_above or "5%")


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
    from thunder_cli.views.bench_plot import draw_suite
    from thunder_core.pipeline.calamity import calamities

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


def compare_files(first: Path, second: Path, wishes: Wishes) -> None:
    """Print how two results compare; raises `BadOption` for what cannot be compared, or asked of it."""
    asked = {
        "--out": wishes.out,
        "--plot": wishes.plot,
        "--baseline": wishes.baseline,
        "--fail-above": wishes.fail_above,
        "--require-speedup": wishes.require_speedup,
        f"--format {wishes.style}": wishes.style in TEXTS or None,
    }
    given = [name for name, value in asked.items() if value is not None]
    if given:
        raise BadOption(f"{', '.join(given)} is for measuring, and two results are read", fix="leave it out")
    rows = contrast_suites(read_suite(first, ""), read_suite(second, ""))
    if wishes.style == "json":
        print_json("contrast/1", {"first": str(first), "second": str(second), "rows": [plain(row) for row in rows]})
        return
    stdout().print(contrast_view(rows, first.stem, second.stem))
