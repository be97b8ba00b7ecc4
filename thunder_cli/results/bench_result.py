"""The result of a measurement: written, plotted, printed, and compared with the requirements."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from thunder_cli.console import print_document, say, stderr, stdout
from thunder_cli.results.bench_output import BenchOutput
from thunder_cli.results.gates import allowed_slowdown
from thunder_cli.views.bench import comparison_view, suite_view
from thunder_cli.views.bench_plot import draw_suite
from thunder_core.foundation.errors import BadOption, SlowerThanBaseline, ThunderError
from thunder_core.foundation.storage.file import replaced_file, write_atomically
from thunder_core.foundation.storage.full_disk import report_unwritable
from thunder_core.workflow.benchmark import (
    BenchmarkSuite,
    Comparison,
    check_against_baseline,
    compare_with_baseline,
    require_speedup,
    write_suite,
)
from thunder_core.workflow.report import render_benchmark_markdown, render_csv

RENDERERS: Mapping[str, Callable[[BenchmarkSuite], str]] = {"csv": render_csv, "markdown": render_benchmark_markdown}
SUFFIXES = {".csv": "csv", ".md": "markdown"}  # the formats by the suffix of --out; all other suffixes are JSON


def finish_bench(suite: BenchmarkSuite, earlier: BenchmarkSuite | None, output: BenchOutput, subject: str) -> None:
    """Write, plot and print a measurement, and check the requirements; raise all errors at the end.

    If a requirement is missed, or a file cannot be written, `--json` prints only the error, which contains the
    measurement.
    """
    rows, slower = compare_with_earlier(suite, earlier, output)
    errors = [
        *errors_of(lambda: write_outputs(suite, output)),
        *slower,
        *errors_of(lambda: require_shown(suite, output, subject)),
    ]
    if not (output.style == "json" and errors):
        print_suite(suite, rows, output)
    if errors:
        raise join_errors(errors, suite, rows)


def compare_with_earlier(
    suite: BenchmarkSuite, earlier: BenchmarkSuite | None, output: BenchOutput
) -> tuple[Sequence[Comparison], Sequence[ThunderError]]:
    """Compare the measurement with the baseline, if there is one; return the comparisons, and errors for slowdowns."""
    if earlier is None:
        return [], []
    try:
        return check_against_baseline(suite, earlier, allowed_slowdown(output)), []
    except SlowerThanBaseline as error:
        return compare_with_baseline(suite, earlier, allowed_slowdown(output)), [error]
    except BadOption as error:
        return [], [error]


def errors_of(step: Callable[[], object]) -> list[ThunderError]:
    """Run a step, and return its ThunderError in a list; return an empty list if it succeeds."""
    try:
        step()
    except ThunderError as error:
        return [error]
    return []


def join_errors(errors: Sequence[ThunderError], suite: BenchmarkSuite, rows: Sequence[Comparison]) -> ThunderError:
    """Join several errors into one error of the first error's class, which also contains the measurement."""
    error = errors[0]
    if len(errors) > 1:
        error = type(error)("; ".join(item.what for item in errors), fix="; ".join(item.fix for item in errors))
        error.__cause__ = errors[0]
    vars(error).update(report=suite, **({"rows": tuple(rows)} if rows else {}))
    return error


def require_shown(suite: BenchmarkSuite, output: BenchOutput, subject: str) -> None:
    """Raise `SpeedupMissed` if the measurement does not show the speed-up of `--require-speedup`."""
    if output.require_speedup is not None:
        require_speedup(suite, output.require_speedup, subject)


def write_outputs(suite: BenchmarkSuite, output: BenchOutput) -> None:
    """Write the requested files; raise `OutOfDisk` and `OutputNotWritable`."""
    for file, write in ((output.out, write_result), (output.plot, draw_result)):
        if file is None:
            continue
        with report_unwritable(file, fix="name another file"):
            write(suite, file)


def write_result(suite: BenchmarkSuite, file: Path) -> None:
    """Write a measurement in the format of the file's suffix."""
    style = SUFFIXES.get(file.suffix.lower())
    if style is None:
        write_suite(suite, file)
    else:
        write_atomically(file, RENDERERS[style](suite))


def draw_result(suite: BenchmarkSuite, file: Path) -> None:
    """Plot a measurement into a file."""
    with replaced_file(file) as new:
        draw_suite(suite, new)


def print_suite(suite: BenchmarkSuite, rows: Sequence[Comparison], output: BenchOutput) -> None:
    """Print the measurements in the requested format, and the comparisons with the baseline."""
    console = stdout()
    if output.style == "json":
        print_document(suite.model_dump_json(indent=2))
    elif output.style in RENDERERS:
        say(RENDERERS[output.style](suite), end="")
    else:
        console.print(suite_view(suite, width=console.width))
    if rows:
        (console if output.style == "table" else stderr(quiet=output.quiet)).print(comparison_view(rows))
