"""`thunder doctor`: checks the environment, and prints a fix for each part with a problem."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from thunder_cli.console import json_data, print_json, stderr, stdout
from thunder_cli.import_notice import importing
from thunder_cli.library_output import quiet_libraries
from thunder_cli.options import FLAG, Debug, Json
from thunder_core.foundation.errors import EnvironmentLacks

if TYPE_CHECKING:
    from thunder_cli.doctor_checks import CheckResult

MARKS = {"ok": ("ok", "green"), "optional": ("--", "dim"), "degraded": ("!!", "yellow"), "missing": ("no", "bold red")}
NAME_WIDTH = 22  # columns for the name of a check; longer names, such as `executor prepacked-convolution`, wrap


def doctor(
    *,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            metavar=FLAG,
            help="Exit with status 3 if a required part is missing, or if any part has a problem. An untested"
            " release of PyTorch and a nearly full disk are problems, too.",
        ),
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Check the environment, and print a fix for each part that is missing or has a problem.

    One check compiles a small C++ program. Other checks sum a tensor over two processes with gloo, and over GPUs with
    NCCL. Each available executor runs a small program, and the results are compared with eager PyTorch.

    The check `processor` shows how the CPU computes products in bfloat16, float16 and int8. Each dtype is native,
    widened in registers by `packed-linear`, or converted (slow).
    """
    with quiet_libraries(debug=debug):
        with importing(stderr()):
            from thunder_cli.doctor_checks import run_checks
        results = list(run_checks()) if json else print_as_completed(run_checks(), stdout())
    failing = [result for result in results if result.state in ("degraded", "missing")]
    if json:
        print_results(results, healthy=not failing)
    else:
        stdout().print(verdict(results))
    if strict and failing:
        raise EnvironmentLacks(
            f"these parts are missing or have problems: {', '.join(result.name for result in failing)}",
            fix="; ".join(dict.fromkeys(result.fix for result in failing)),
        )


def print_as_completed(results: Iterable[CheckResult], console: Console) -> list[CheckResult]:
    """Print each result as soon as its check is complete, with a spinner during the check; return all results."""
    completed: list[CheckResult] = []
    remaining = iter(results)
    while True:
        with stderr().status("checking"):
            result = next(remaining, None)
        if result is None:
            console.print()
            return completed
        completed.append(result)
        console.print(result_row(result))


def result_row(result: CheckResult) -> Table:
    """Return a result as a row: the mark of its state, its name, the finding and the fix."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=2)
    table.add_column(width=NAME_WIDTH, overflow="fold")
    table.add_column(overflow="fold")
    fix = Text(f"\n{result.fix}", "dim") if result.fix else Text()
    table.add_row(Text(*MARKS[result.state]), Text(result.name, "bold"), Text.assemble(result.found, fix))
    return table


def verdict(results: Sequence[CheckResult]) -> Text:
    """Return the overall result of all checks, as a sentence."""
    names_by_state = {state: [result.name for result in results if result.state == state] for state in MARKS}
    if names_by_state["missing"]:
        return Text(f"Missing requirements: {', '.join(names_by_state['missing'])}.", "bold red")
    if names_by_state["degraded"]:
        return Text(f"Thunder runs, but these parts have problems: {', '.join(names_by_state['degraded'])}.", "yellow")
    return Text("All checks passed.", "green")


def print_results(results: Sequence[CheckResult], *, healthy: bool) -> None:
    """Print the results and the environment as JSON."""
    from thunder_core.workflow.report import describe_environment

    environment = json_data(describe_environment())
    print_json(
        "doctor/1",
        {"healthy": healthy, "checks": [result.as_data() for result in results], "environment": environment},
    )
