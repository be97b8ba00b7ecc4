"""The comparison of two results of `thunder bench`; nothing is measured, and PyTorch is not needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from thunder_cli.console import json_data, print_json, stdout
from thunder_cli.options import STYLES
from thunder_cli.results.bench_output import BenchOutput
from thunder_cli.views.bench import contrast_view
from thunder_core.foundation.errors import BadOption
from thunder_core.workflow.benchmark.baseline import read_suite
from thunder_core.workflow.benchmark.suite_comparison import contrast_suites


def compare_files(first: Path, second: Path, output: BenchOutput, options_of_run: Sequence[str]) -> None:
    """Print the comparison of two results; raise `BadOption` for incomparable results and for useless options.

    `options_of_run` are the specified options that only a measurement reads.
    """
    options_of_output = {
        "--out": output.out,
        "--plot": output.plot,
        "--baseline": output.baseline,
        "--fail-above": output.fail_above,
        "--require-speedup": output.require_speedup,
        f"--format {output.style}": output.style in STYLES[1:] or None,
    }
    useless = [*options_of_run, *(name for name, value in options_of_output.items() if value is not None)]
    if useless:
        verb = "has" if len(useless) == 1 else "have"
        raise BadOption(
            f"{', '.join(useless)} {verb} no effect when two results are compared: nothing is measured",
            fix=f"leave out {', '.join(useless)}",
        )
    rows = contrast_suites(read_suite(first, ""), read_suite(second, ""))
    if output.style == "json":
        print_json("contrast/1", {"first": str(first), "second": str(second), "rows": [json_data(row) for row in rows]})
        return
    stdout().print(contrast_view(rows, first.stem, second.stem))
