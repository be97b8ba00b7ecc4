"""`thunder inspect-trace`: any trace of an artifact or a model, at any stage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from thunder_cli import options
from thunder_cli.console import print_json
from thunder_cli.hush import hushed

if TYPE_CHECKING:
    from thunder_core.inspect.subject import Subject

TraceName = Literal["prologue", "computation", "tail", "backward", "epilogue"]
Level = Literal["torch", "aten"]


def inspect_trace(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[ARTIFACT|MODEL]",
            help="A folder that `thunder optimize` wrote, or a model; without it, the recipe's own sample model.",
            show_default=False,
        ),
    ] = None,
    *,
    trace: Annotated[TraceName, typer.Option("--trace", "-t", help="Which trace.")] = "computation",
    stage: Annotated[
        str | None, typer.Option("--stage", "-s", metavar="STAGE", help="Number or name [default: the one that runs]")
    ] = None,
    program: Annotated[int, typer.Option("--program", metavar="N", help="Which program of an artifact.")] = 0,
    list_: Annotated[bool, typer.Option("--list", "-l", help="List the traces and their stages.")] = False,
    diff: Annotated[
        tuple[str, str] | None, typer.Option("--diff", metavar="STAGE STAGE", help="What changed between two stages.")
    ] = None,
    grep: Annotated[
        str | None, typer.Option("--grep", "-g", metavar="REGEX", help="The lines that match, with their places.")
    ] = None,
    module: Annotated[
        str | None,
        typer.Option("--module", "-m", metavar="PATH", help="The lines of one module, as in layers.0.self_attn."),
    ] = None,
    level: Annotated[
        Level, typer.Option("--level", help="As the user wrote it, or what PyTorch makes of it.")
    ] = "torch",
    plain: Annotated[bool, typer.Option("--plain", "-p", help="A Python file that runs, without colours.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there, in plain form.")
    ] = None,
    train: Annotated[
        bool, typer.Option("--train", help="Call the model as in training, so that there is a backward.")
    ] = False,
    recipe: options.RecipeName = None,
    dtype: options.Dtype = None,
    device: options.Device = None,
    batch: Annotated[int | None, typer.Option("--batch", metavar="N", help="Samples in an input [default: 1]")] = None,
    seq: Annotated[int | None, typer.Option("--seq", metavar="N", help="Tokens in a sample [default: 128]")] = None,
    task: options.Task = None,
    set_: options.Set = None,
    revision: options.Revision = None,
    random_weights: options.RandomWeights = False,
    trust_remote_code: options.TrustRemoteCode = False,
    seed: options.Seed = None,
    json: options.Json = False,
    debug: options.Debug = False,
) -> None:
    """Show the traces of an artifact or a model: what was recorded, what each step made of it, and what runs."""
    from thunder_cli.views.trace import Look, View

    settings: dict[str, object] = {
        "model": subject,
        "recipe": recipe,
        "dtype": dtype,
        "device": device,
        "task": task,
        "revision": revision,
        "random_weights": random_weights or None,
        "trust_remote_code": trust_remote_code or None,
        "seed": seed,
        "batch": batch,
        "seq": seq,
    }
    with hushed(debug=debug):
        shown = subject_named(subject, program, settings, set_ or [], train=train)
    look = Look(trace, stage, level, diff=diff, grep=grep, module=module, plain=plain or output is not None)
    view = View(shown, look)
    if json:
        print_json("inspect-trace/1", view.listing_data() if list_ else view.data())
    elif output is not None:
        write(output, view.plain_list() if list_ else view.text())
    else:
        view.print_list() if list_ else view.print()


def subject_named(
    name: str | None, program: int, settings: dict[str, object], assignments: list[str], *, train: bool
) -> Subject:
    """The artifact of that name; or else the model, loaded, compiled and called once."""
    from thunder_core.artifact.read import is_artifact, open_artifact
    from thunder_core.errors import BadOption
    from thunder_core.inspect.subject import subject_of

    if name is None or not is_artifact(Path(name).expanduser()):
        return model_named(settings, assignments, train=train)
    settings = {**settings, "train": train}
    given = [f"--{option.replace('_', '-')}" for option, value in settings.items() if value and option != "model"]
    if given or assignments:
        raise BadOption(
            f"{', '.join(given) or '--set'} is for models, and {name} is an artifact, whose traces are what they are",
            fix="leave it out, or name the model in place of the artifact",
        )
    return subject_of(open_artifact(Path(name)), program)


def model_named(settings: dict[str, object], assignments: list[str], *, train: bool) -> Subject:
    """The traces of a model by a recipe."""
    from thunder_cli.settings import parse_assignments, settings_of
    from thunder_core.inspect.live import traced_model

    return traced_model(settings_of({**settings, "set": parse_assignments(assignments)}).request(), train=train)


def write(path: Path, text: str) -> None:
    """Write a text file; raises `OutputNotWritable`."""
    from thunder_core.errors import OutputNotWritable

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputNotWritable(
            f"{path} cannot be written: {error.strerror or error}", fix="name a file that can be written with --output"
        ) from error
