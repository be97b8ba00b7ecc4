"""`thunder doctor`: what this machine has, what works, and what to install for what does not."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from thunder_cli.console import plain, print_json, stdout
from thunder_cli.options import FLAG, Debug, Json
from thunder_core.errors import EnvironmentLacks

MARKS = {"ok": ("ok", "green"), "optional": ("--", "yellow"), "missing": ("no", "bold red")}


def doctor(
    *,
    strict: Annotated[
        bool, typer.Option("--strict", metavar=FLAG, help="Exit with 3 if something that is needed is missing.")
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Examine the environment: what works, and what to install for what does not."""
    from thunder_cli.health import examine

    checks = examine()
    missing = [check for check in checks if check.state == "missing"]
    if json:
        from thunder_core.report import describe_environment

        environment = plain(describe_environment())
        print_json(
            "doctor/1",
            {"healthy": not missing, "checks": [check.as_data() for check in checks], "environment": environment},
        )
    else:
        table = Table.grid(padding=(0, 2, 0, 0))
        for check in checks:
            fix = Text(f"\n{check.fix}", "dim") if check.fix else Text()
            table.add_row(Text(*MARKS[check.state]), Text(check.name, "bold"), Text.assemble(check.found, fix))
        verdict = Text("Something that is needed is missing.", "bold red") if missing else Text("All is well.", "green")
        stdout().print(Group(table, Text(), verdict))
    if strict and missing:
        raise EnvironmentLacks(
            f"missing: {', '.join(check.name for check in missing)}", fix="; ".join(check.fix for check in missing)
        )
