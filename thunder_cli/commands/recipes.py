"""`thunder recipes`: lists recipes, shows one recipe or a combination of several, and creates templates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from thunder_cli.command_class import refuse_ignored_json
from thunder_cli.console import print_json, say, stderr, stdout
from thunder_cli.option_groups import expand_options
from thunder_cli.options import Debug, Json, complete_recipe
from thunder_cli.settings import Settings
from thunder_core.foundation import plugins

if TYPE_CHECKING:
    from thunder_core.passes.recipe import Recipe

DEFAULT = "default"
REASON = "reason for this position"

recipes = typer.Typer(help="List, show, explain or create recipes.", invoke_without_command=True)


@recipes.callback()
def list_by_default(context: typer.Context, *, json: Json = False, debug: Debug = False) -> None:
    """List, show, explain or create recipes."""
    if context.invoked_subcommand is None:
        list_recipes(json=json)
    else:
        refuse_ignored_json(context, json)


@recipes.command("list")
def list_recipes(*, json: Json = False, debug: Debug = False) -> None:
    """List the available recipes."""
    listed = plugins.listing("recipes")
    if json:
        rows = [{"name": r.name, "summary": r.summary, "available": not r.reason, "reason": r.reason} for r in listed]
        print_json("recipes/1", {"recipes": rows})
        return
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("recipe", no_wrap=True)
    table.add_column("what it does")
    for row in listed:
        reason = Text(f"  {row.reason}", "yellow") if row.reason else Text()
        table.add_row(Text(row.name, "bold"), Text.assemble(row.summary, reason))
    stdout().print(table)


@recipes.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the recipe.", autocompletion=complete_recipe)],
    *,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what a recipe does, its options, and which parts this machine cannot run."""
    from thunder_cli.import_notice import importing
    from thunder_cli.library_output import quiet_libraries

    plugins.require("recipes", name)
    with quiet_libraries(debug=debug), importing(stderr()):
        from thunder_core.workflow.pipeline.request.recipes import recipe_class

        recipe_data = as_data(recipe_class(name)())
    if json:
        print_json("recipe/1", {"recipe": recipe_data})
    else:
        stdout().print(Group(*describe(recipe_data)))


@recipes.command()
@expand_options
def explain(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME", help="Names of the recipes to combine.", autocompletion=complete_recipe),
    ],
    *,
    settings: Annotated[Settings, ("add-transform", "add-executor", "without")],
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Combine recipes, and list the resulting transforms and executors, with the reason for each position."""
    from thunder_cli.import_notice import importing
    from thunder_cli.library_output import quiet_libraries
    from thunder_core.foundation.options import require_values

    request = replace(settings.request(), recipe=tuple(names))
    require_values(request)
    with quiet_libraries(debug=debug), importing(stderr()):
        from thunder_core.workflow.pipeline.request.recipes import requested_recipe

        explanation_data = explanation(requested_recipe(request))
    if json:
        print_json("explanation/1", {"recipe": explanation_data})
    else:
        stdout().print(Group(*explanation_rows(explanation_data)))


def explanation(recipe: Recipe) -> dict[str, Any]:
    """Return the composition of a recipe as plain data: its parts, its ordered steps with the reasons, its settings."""
    from thunder_core.compilation.compiler import CLEANUP_TRANSFORMS
    from thunder_core.passes.recipe.composition import reasons
    from thunder_core.passes.recipe.settings import WITHOUT

    steps = reasons(recipe.composition, CLEANUP_TRANSFORMS)
    return {
        "name": recipe.name,
        "parts": [part.title for part in recipe.components],
        "options": {name: str(value) for name, value in recipe.options.items()},
        "steps": [{"kind": kind, "name": name, "reasons": list(why)} for kind, name, why in steps],
        "lookasides": [lookaside.name for lookaside in recipe.all_lookasides()],
        "settings": {name: str(value) for name, value in recipe.composition.settings.items() if name != WITHOUT},
        "without": list(recipe.composition.without),
    }


def explanation_rows(explanation_data: dict[str, Any]) -> list[Text | Table]:
    """Return the composition of a recipe as text: a line for each step, with the reasons for its position."""
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for title in ("", "kind", "step", REASON):
        table.add_column(title, no_wrap=title != REASON)
    for number, step in enumerate(explanation_data["steps"], start=1):
        why = "; ".join(step["reasons"]) or "ordered by name"
        table.add_row(str(number), step["kind"], Text(step["name"], "bold"), Text(why))
    rows: list[Text | Table] = [Text(explanation_data["name"], "bold"), Text(), table]
    if explanation_data["without"]:
        rows += [Text(), Text(f"without: {', '.join(explanation_data['without'])}")]
    for section in ("options", "settings"):
        values = ", ".join(f"{name}={value}" for name, value in explanation_data[section].items())
        rows += [Text(), Text(f"{section}: {values}")] if values else []
    if explanation_data["lookasides"]:
        rows += [Text(), Text(f"lookasides: {', '.join(explanation_data['lookasides'])}")]
    return rows


@recipes.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the recipe: words joined by hyphens.")],
    *,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="DIR", help="Folder for the recipe and its test.", show_default="current folder"
        ),
    ] = Path(),
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Create a documented template of a recipe, and its test."""
    from thunder_core.workflow.pipeline.request.new_recipe import write_recipe

    written = write_recipe(name, out)
    if json:
        print_json("new-recipe/1", {"files": [str(path) for path in written]})
        return
    for path in written:
        say(str(path))


def as_data(recipe: Recipe) -> dict[str, Any]:
    """Return a recipe with its default options as plain data."""
    import inspect

    from thunder_core.passes.recipe import order_transforms
    from thunder_core.workflow.pipeline.request.recipes import recipe_class
    from thunder_core.workflow.pipeline.session.executors import candidates

    fields = type(recipe).Options.model_fields
    return {
        "name": recipe.name,
        "description": inspect.cleandoc(type(recipe).__doc__ or ""),
        "families": list(recipe.families),
        "sample": recipe.sample,
        "device": recipe.device or None,
        "dtype": recipe.dtype or None,
        "seq": recipe.seq or None,
        "padded": recipe.padded,
        "options": [
            {
                "name": option,
                "type": getattr(field.annotation, "__name__", str(field.annotation)),
                "default": str(field.get_default(call_default_factory=True)),
                "description": field.description or "",
            }
            for option, field in fields.items()
        ],
        "transforms": [type(transform).__name__ for transform in order_transforms(recipe.all_transforms())],
        "lookasides": [
            {"function": lookaside.name, "description": lookaside.summary} for lookaside in recipe.all_lookasides()
        ],
        "executors": [
            {"name": candidate.name, "reason": candidate.reason} for candidate in candidates(recipe.all_executors())
        ],
        "differences_from_default": differences(recipe, recipe_class(DEFAULT)()),
        "degraded": [{"part": d.part, "reason": d.reason, "fix": d.fix} for d in recipe.skipped_parts()],
    }


def differences(recipe: Recipe, default: Recipe) -> list[str]:
    """Return the differences between a recipe and `default`, which has no transforms, lookasides or options.

    Model families are not compared.
    """
    recipe_executors, default_executors = (set(map(str, side.all_executors())) for side in (recipe, default))
    by_section = {
        "executors": [
            name for name in map(str, recipe.all_executors()) if name in recipe_executors - default_executors
        ],
        "transforms": [type(transform).__name__ for transform in recipe.all_transforms()],
        "lookasides": [lookaside.name for lookaside in recipe.all_lookasides()],
        "options": list(type(recipe).Options.model_fields),
        "settings": [f"{name}={value}" for name, value in recipe.composition.settings.items()],
        "device": [recipe.device] if recipe.device else [],
        "dtype": [recipe.dtype] if recipe.dtype else [],
        "texts": [*texts_in_words(recipe.seq, padded=recipe.padded)],
    }
    added = [f"{section} {', '.join(names)}" for section, names in by_section.items() if names]
    executors_left_out = sorted(default_executors - recipe_executors)
    return [*added, *([f"without {', '.join(executors_left_out)}"] if executors_left_out else [])]


def texts_in_words(seq: int | None, *, padded: bool) -> Iterator[str]:
    """Yield what a recipe says about random texts: their default length, and the omission of padding."""
    yield from [f"of {seq} tokens"] if seq else []
    yield from [] if padded else ["without padding"]


def differences_in_words(recipe_data: dict[str, Any]) -> str:
    """Return the differences between a recipe and `default`, in words."""
    if recipe_data["differences_from_default"]:
        return "; ".join(recipe_data["differences_from_default"])
    return "the same program" + ("; models of other families are refused" if recipe_data["families"] else "")


def skipped_executors(recipe_data: dict[str, Any]) -> dict[str, list[str]]:
    """Return the executors that this machine cannot run, by reason."""
    names: dict[str, list[str]] = {}
    for executor in recipe_data["executors"]:
        if executor["reason"]:
            names.setdefault(executor["reason"], []).append(executor["name"])
    return names


def skipped_parts(recipe_data: dict[str, Any]) -> dict[str, list[str]]:
    """Return the parts of the recipe that are skipped on this machine, by reason and fix."""
    names: dict[str, list[str]] = {}
    for part in recipe_data["degraded"]:
        names.setdefault(f"{part['reason']} ({part['fix']})", []).append(part["part"])
    return names


def describe(recipe_data: dict[str, Any]) -> list[Text | Table]:
    """Return a recipe's data as text."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, style="dim")
    grid.add_column()
    grid.add_row("models", Text(", ".join(recipe_data["families"]) or "any"))
    grid.add_row("sample", Text(recipe_data["sample"]))
    if recipe_data["device"] or recipe_data["dtype"]:
        grid.add_row(
            "runs",
            Text(
                f"on {recipe_data['device'] or 'any device'} in {recipe_data['dtype'] or 'the dtype of the checkpoint'}"
            ),
        )
    grid.add_row("transforms", Text(", ".join(recipe_data["transforms"]) or "none"))
    if texts := list(texts_in_words(recipe_data["seq"], padded=recipe_data["padded"])):
        grid.add_row("texts", Text(", ".join(texts)))
    for lookaside in recipe_data["lookasides"]:
        grid.add_row("lookaside", Text(f"{lookaside['function']}  {lookaside['description']}".rstrip()))
    grid.add_row("executors", Text(", ".join(executor["name"] for executor in recipe_data["executors"])))
    if recipe_data["name"] != DEFAULT:
        grid.add_row("compared with default", Text(differences_in_words(recipe_data)))
    for option in recipe_data["options"]:
        text = f"{option['name']}={option['default']}  ({option['type']}) {option['description']}"
        grid.add_row("option", Text(text.rstrip()))
    for title, rows, style in (
        ("executors skipped", skipped_executors(recipe_data), "dim"),
        ("parts skipped", skipped_parts(recipe_data), "yellow"),
    ):
        for reason, names in rows.items():
            grid.add_row(title, Text(f"{', '.join(names)}: {reason}", style))
    return [Text(recipe_data["name"], "bold"), Text(recipe_data["description"]), Text(), grid]
