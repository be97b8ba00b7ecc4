"""`thunder executors`: lists the executors, or shows the executors of an artifact."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from thunder_cli.console import print_json, stderr, stdout
from thunder_cli.import_notice import importing
from thunder_cli.options import Debug, Json, complete_executor
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadOption, ThunderError, WrongInputs
from thunder_core.foundation.similar_names import unknown_name

Row = dict[str, object]


def executors(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME", help="Name of an executor. Default: list all.", autocompletion=complete_executor
        ),
    ] = None,
    *,
    of: Annotated[
        Path | None,
        typer.Option(
            "--of",
            metavar="ARTIFACT",
            help="Artifact folder. Show the operations that each executor runs or refuses, and its share of the time "
            "if measured.",
        ),
    ] = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List the executors, with the operations of each or the reason why it is unavailable.

    With --of, show the executors of ARTIFACT instead.
    """
    if of is not None:
        if name is not None:
            raise BadOption(
                f"--of shows all executors of {of}, so it cannot be combined with an executor's name ({name})",
                fix="leave out the name, or leave out --of",
            )
        show_artifact(of, json)
        return
    listed = plugins.listing("executors")
    if name is not None:
        listed = [executor for executor in listed if executor.name == name.replace("_", "-")]
        if not listed:
            raise unknown_name("executor", name, plugins.names("executors"))
    with importing(stderr()):
        rows = [describe(executor) for executor in listed]
    if json:
        print_json("executors/1", {"executors": rows})
    elif name is not None:
        print_executor(rows[0])
    else:
        print_all(rows)


def show_artifact(folder: Path, json: bool) -> None:
    """Print the executors in the report of an artifact."""
    from thunder_cli.views.outcome import choices_view, operations_view, refused_view
    from thunder_core.workflow.artifact.format.read import open_artifact
    from thunder_core.workflow.artifact.format.report import read_report

    report = read_report(open_artifact(folder))
    if report is None:
        raise WrongInputs(
            f"{folder} has no report", fix="make the artifact with `thunder optimize`, which writes a report"
        )
    if json:
        parts = {"executors": report.executors, "choices": report.choices, "refused": report.refused}
        rows = {name: [row.model_dump(mode="json") for row in part] for name, part in parts.items()}
        print_json("executors-of/1", rows)
        return
    for view in (*operations_view(report), *choices_view(report), *refused_view(report, absent=True)):
        stdout().print(view)


def describe(listed: plugins.PluginDescription) -> Row:
    """Return an executor as plain data: whether it is available, the reason if not, and the operations it claims."""
    reason, claims = listed.reason, None
    if reason is None:
        try:
            executor = plugins.load("executors", listed.name).EXECUTOR
            reason, claims = executor.missing(), executor.claims
        except (ThunderError, ImportError, OSError, AttributeError) as error:
            reason = error.what if isinstance(error, ThunderError) else f"{type(error).__name__}: {error}"
    return {
        "name": listed.name,
        "available": reason is None,
        "reason": reason,
        "claims": claims,
        "summary": listed.summary,
    }


def state_of(row: Row) -> Text:
    """Return the availability of an executor as a coloured word, or the reason."""
    return Text("available", "green") if row["available"] else Text(str(row["reason"]), "yellow")


def print_all(rows: Iterable[Row]) -> None:
    """Print a line for each executor."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("executor", no_wrap=True)
    table.add_column("on this machine", overflow="fold")
    table.add_column("claims", overflow="fold")
    for row in rows:
        table.add_row(Text(str(row["name"]), "bold"), state_of(row), Text(str(row["claims"] or row["summary"])))
    stdout().print(table)


def print_executor(row: Row) -> None:
    """Print the facts about one executor."""
    stdout().print(Text.assemble((str(row["name"]), "bold"), "  ", state_of(row), f"\n\n{row['summary']}"))
    if row["claims"]:
        stdout().print(Text.assemble(("claims ", "dim"), str(row["claims"])))
