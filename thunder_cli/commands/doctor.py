"""`thunder doctor`: checks the features of this machine, and prints the fix for missing ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from thunder_cli.console import plain, print_json, stderr, stdout
from thunder_cli.import_notice import importing
from thunder_cli.library_output import quiet_libraries
from thunder_cli.options import FLAG, Debug, Json
from thunder_core.foundation.errors import EnvironmentLacks

if TYPE_CHECKING:
    from thunder_cli.health import Check

MARKS = {"ok": ("ok", "green"), "optional": ("--", "dim"), "degraded": ("!!", "yellow"), "missing": ("no", "bold red")}
NAME = 20  # columns for the name of a check


def doctor(
    *,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            metavar=FLAG,
            help="Exit with status 3 if a required part is missing or a part does not work.",
        ),
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Check the environment, and print a fix for each part that is missing or does not work.

    The C++ compiler compiles three lines. Two processes sum a tensor with gloo, and up to two GPUs sum a tensor with
    NCCL. Each available executor runs a small program, and the results are compared with eager PyTorch.
    """
    with quiet_libraries(debug=debug):
        with importing(stderr()):
            from thunder_cli.health import examine
        checks = list(examine()) if json else print_as_completed(examine(), stdout())
    failing = [check for check in checks if check.state in ("degraded", "missing")]
    if json:
        print_checks(checks, healthy=not failing)
    else:
        stdout().print(verdict(checks))
    if strict and failing:
        raise EnvironmentLacks(
            f"missing or not working: {', '.join(check.name for check in failing)}",
            fix="; ".join(dict.fromkeys(check.fix for check in failing)),
        )


def print_as_completed(checks: Iterable[Check], console: Console) -> list[Check]:
    """Print each check as soon as it is complete, and return all; on a terminal, show a spinner while checks run."""
    completed: list[Check] = []
    coming = iter(checks)
    while True:
        with stderr().status("checking"):
            check = next(coming, None)
        if check is None:
            console.print()
            return completed
        completed.append(check)
        console.print(row(check))


def row(check: Check) -> Table:
    """Return a check as a row: its mark, its name, the result and the fix."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=2)
    table.add_column(width=NAME)
    table.add_column(overflow="fold")
    fix = Text(f"\n{check.fix}", "dim") if check.fix else Text()
    table.add_row(Text(*MARKS[check.state]), Text(check.name, "bold"), Text.assemble(check.found, fix))
    return table


def verdict(checks: Sequence[Check]) -> Text:
    """Return the verdict on all checks, in a sentence."""
    named = {state: [check.name for check in checks if check.state == state] for state in MARKS}
    if named["missing"]:
        return Text(f"Missing requirements: {', '.join(named['missing'])}.", "bold red")
    if named["degraded"]:
        return Text(f"Thunder runs, but these parts do not work: {', '.join(named['degraded'])}.", "yellow")
    return Text("All checks passed.", "green")


def print_checks(checks: Sequence[Check], *, healthy: bool) -> None:
    """Print the checks and the environment as JSON."""
    from thunder_core.workflow.report import describe_environment

    environment = plain(describe_environment())
    print_json(
        "doctor/1",
        {"healthy": healthy, "checks": [check.as_data() for check in checks], "environment": environment},
    )
