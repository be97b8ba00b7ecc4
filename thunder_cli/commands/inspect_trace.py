"""`thunder inspect-trace`: shows any trace of an artifact or a model, at any stage."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from thunder_cli import options
from thunder_cli.console import print_json, stderr
from thunder_cli.library_output import quiet_libraries
from thunder_cli.option_groups import expand_options
from thunder_cli.results.bench_output import require_writable
from thunder_cli.settings import Settings
from thunder_core.foundation.printable import printable

if TYPE_CHECKING:
    from thunder_cli.views.trace import View
    from thunder_core.workflow.inspect.subject import Subject

GENERATION = ("prompt-length", "new-tokens")  # settings of --task generate

TraceName = Annotated[
    Literal["prologue", "computation", "tail", "backward", "epilogue"],
    typer.Option(
        "--trace",
        "-t",
        metavar="NAME",
        help="Trace to show: prologue, computation, tail, backward or epilogue. The prologue checks and fetches the "
        "inputs. The computation has the operations, the backward computes gradients, and the tail makes the views "
        "that are returned. The epilogue replays effects and builds the result.",
    ),
]
Stage = Annotated[
    str | None,
    typer.Option(
        "--stage",
        "-s",
        metavar="STAGE",
        help="Number or name of the stage [default: the last stage, which runs]",
    ),
]
ProgramIndex = Annotated[
    int,
    typer.Option(
        "--program",
        metavar="N",
        help="Number of the program in an artifact, starting at 0. An artifact may have several programs, each with"
        " its own traces.",
    ),
]
List = Annotated[bool, typer.Option("--list", "-l", metavar=options.FLAG, help="List the traces and their stages.")]
Diff = Annotated[
    tuple[str, str] | None,
    typer.Option("--diff", metavar="STAGE STAGE", help="Show the differences between two stages."),
]
Grep = Annotated[
    str | None, typer.Option("--grep", "-g", metavar="REGEX", help="Show matching lines with their line numbers.")
]
ModulePath = Annotated[
    str | None,
    typer.Option("--module", "-m", metavar="PATH", help="Show the lines of one module, such as layers.0.self_attn."),
]
Level = Annotated[
    Literal["torch", "aten"],
    typer.Option(
        "--level",
        metavar="NAME",
        help="Level of detail. `torch`: calls as written; `aten`: the ATen operations that they decompose into.",
    ),
]
Plain = Annotated[
    bool,
    typer.Option(
        "--plain",
        "-p",
        metavar=options.FLAG,
        help="Print without colours; a complete trace is a runnable Python file.",
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="File to write the output to, in the form of --plain."),
]


@expand_options
def inspect_trace(
    subject: options.Subject = None,
    *,
    trace: TraceName = "computation",
    stage: Stage = None,
    program: ProgramIndex = 0,
    list_: List = False,
    diff: Diff = None,
    grep: Grep = None,
    module: ModulePath = None,
    level: Level = "torch",
    plain: Plain = False,
    output: Output = None,
    settings: Annotated[Settings, (*options.MODEL_SETTINGS, "batch", "seq", *GENERATION)],
    json: options.Json = False,
    allow_untested_torch: options.AllowUntestedTorch = False,
    debug: options.Debug = False,
) -> None:
    """Show the traces of an artifact or a model: as recorded, after each transform, and as run."""
    from thunder_cli.views.trace import DisplayOptions, View

    chosen = {"trace": None if trace == "computation" else trace, "level": None if level == "torch" else level}
    line_options = {"diff": diff, "grep": grep, "module": module, "stage": stage, **chosen}
    refuse_unused(listing=list_, output=output, json=json, line_options=line_options)
    require_writable(output, None)
    with quiet_libraries(debug=debug):
        display_options = DisplayOptions(
            trace, stage, level, diff=diff, grep=grep, module=module, plain=plain or output is not None
        )
        opened_subject = open_subject(settings.with_model(subject), program)
    view = View(opened_subject, display_options)
    show(view, output, stages=list_, json=json)
    if not list_ and view.is_empty:
        view.report_earlier_match()
        raise typer.Exit(1)


def refuse_unused(*, listing: bool, output: Path | None, json: bool, line_options: Mapping[str, object]) -> None:
    """Raise `BadOption` for an option that has no effect together with --list or --json."""
    from thunder_core.foundation.errors import BadOption

    used_options = [f"--{name}" for name, value in line_options.items() if value is not None]
    if listing and used_options:
        raise BadOption(
            f"--list and {used_options[0]} exclude each other: the list has all traces and stages, and no lines",
            fix="leave out one of the two",
        )
    if json and output is not None:
        raise BadOption(
            "--json and --output exclude each other", fix="leave out one of the two, or write `--json > FILE`"
        )


def show(view: View, output: Path | None, *, stages: bool, json: bool) -> None:
    """Print a trace, or the list of `stages`, as JSON or as text; or write it to a file."""
    if json:
        print_json("inspect-trace/1", view.listing_data() if stages else view.data())
    elif output is not None:
        write(output, view.plain_list() if stages else view.text())
    else:
        view.print_list() if stages else view.print()


def open_subject(settings: Settings, program: int) -> Subject:
    """Open the artifact that the settings name, or load, compile and call the model that they name."""
    from thunder_cli.settings import refuse_model_settings
    from thunder_core.foundation.errors import BadOption
    from thunder_core.workflow.artifact.format.read import is_artifact, open_artifact
    from thunder_core.workflow.inspect.subject import subject_of

    folder = Path(settings.get("model") or "").expanduser()
    if not settings.get("model") or not is_artifact(folder):
        if program:
            raise BadOption("--program is only for artifacts: a model has one program", fix="leave out --program")
        return trace_model(settings)
    refuse_model_settings(settings, folder)
    return subject_of(open_artifact(folder), program)


def trace_model(settings: Settings) -> Subject:
    """Load, compile and call the model that the settings name."""
    from thunder_cli.checked_request import checked_request
    from thunder_cli.import_notice import importing_tested_torch

    request = checked_request(settings, stderr())
    with importing_tested_torch(stderr()):
        from thunder_core.workflow.inspect.in_process import traced_model
    return traced_model(request)


def write(path: Path, text: str) -> None:
    """Write a text file atomically; raise `OutOfDisk` or `OutputNotWritable`."""
    from thunder_core.foundation.storage.file import write_atomically
    from thunder_core.foundation.storage.full_disk import report_unwritable

    with report_unwritable(path, fix="name a writable file with --output"):
        write_atomically(path, printable(text))
