"""The options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from thunder_core import plugins


def complete_recipe(incomplete: str) -> list[tuple[str, str]]:
    """The recipes whose names begin so, each with what it is, for the shell's completion."""
    return [(r.name, r.summary) for r in plugins.listing("recipes") if r.name.startswith(incomplete)]


def complete_executor(incomplete: str) -> list[tuple[str, str]]:
    """The executors whose names begin so, each with what it is, for the shell's completion."""
    return [(e.name, e.summary) for e in plugins.listing("executors") if e.name.startswith(incomplete)]


Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show tracebacks and what libraries log.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No plan and no progress.")]

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]",
        help="A folder in Hugging Face layout, or a hub name; without it, the recipe's own small sample model.",
        show_default=False,
    ),
]
RecipeName = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        "-r",
        metavar="NAME",
        help="The recipe; `thunder recipes` lists them.",
        autocompletion=complete_recipe,
    ),
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="An option of the recipe; may be repeated.")
]
Dtype = Annotated[str | None, typer.Option("--dtype", metavar="NAME", help="float32, bfloat16, float16 or float64.")]
Device = Annotated[str | None, typer.Option("--device", metavar="NAME", help="cpu, cuda or cuda:N.")]
Task = Annotated[
    str | None, typer.Option("--task", metavar="NAME", help="What the model is for, if not what its config says.")
]
Revision = Annotated[
    str | None, typer.Option("--revision", metavar="REV", help="Branch, tag or commit of a hub model.")
]
Runs = Annotated[int | None, typer.Option("--runs", metavar="N", help="Rounds of the benchmark that count.")]
Warmup = Annotated[int | None, typer.Option("--warmup", metavar="N", help="Rounds of the benchmark that do not.")]
Seed = Annotated[int | None, typer.Option("--seed", metavar="N", help="Seed of random weights and of all inputs.")]
RandomWeights = Annotated[
    bool, typer.Option("--random-weights", help="Build MODEL from its config alone, with seeded weights.")
]
TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run the Python code that MODEL brings. Read it first.")
]
Strict = Annotated[bool, typer.Option("--strict", help="Fail where this machine lacks a part of the recipe.")]
