"""Writes docs/recipes.md, the page of recipes, their options and their traits, from the recipes themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from thunder_cli.commands.recipes import compared_with_default, differences
from thunder_core.backend.claiming.executor import find_executor
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import EnvironmentLacks
from thunder_core.passes.recipe.settings import DEFAULTS
from thunder_core.tracing.extension.traits import RELATIONS
from thunder_core.tracing.extension.transform import Transform, subclasses
from thunder_core.workflow.pipeline.request.part_names import transform_classes
from thunder_core.workflow.pipeline.request.recipes import recipe_class

PAGE = Path(__file__).with_suffix(".md")

HEAD = """\
# Recipes

<!-- Written by `make docs` from docs/recipes.py and the recipes. -->

A recipe packages what a family of models needs: transforms, executors, lookasides, operators and settings. It is named
on the command line (`--recipe hf-llama3`) and in Python (`thunder_core.compile(model, "hf-llama3")`); `auto` picks one
by the model and the machine and says why. How one is written is told in `recipes/README.md`; `thunder recipes new NAME`
writes the start of one, with a test.

## Adding them to each other

Recipes, plug-ins, transforms, executors and lookasides are added to a recipe or a plug-in, in whatever order.

    thunder optimize MODEL --recipe hf-llama3 --recipe max-memory-saving --set budget=0.5
    thunder optimize MODEL --recipe hf-llama3 --add-transform "Autocast(dtype=torch.bfloat16)" --add-executor triton
    thunder recipes explain hf-llama3 reduce-overhead

```python
>>> import torch
>>> import thunder_core as thunder
>>> from thunder_recipes.default import Default
>>> from thunder_recipes.max_memory_saving import MaxMemorySaving
>>> one, other = Default() + MaxMemorySaving(), MaxMemorySaving() + Default()
>>> one.name, one.name == other.name
('default + max-memory-saving', True)
>>> model, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
>>> compiled = thunder.compile(model, ["default", "max-memory-saving"], budget=0.5)
>>> torch.equal(compiled(x), model(x))
True

```

Order comes from the traits of the parts, from the rows in which recipes list executors, and from names where these
leave a choice; never from the order of writing. `thunder recipes explain` prints it with the reasons; so does
`reasons` in Python:

```python
>>> from thunder_core.recipe.composition import reasons
>>> for kind, name, why in reasons((one.with_(executors=["triton"])).composition):
...     print(kind, name, *why, sep=" | ")
executor | sdpa
executor | triton | sdpa comes before triton
executor | packed-linear | packed-linear comes after triton
executor | inductor | default lists packed-linear before inductor
executor | torch | it runs all operations that no other executor has claimed

```

Parts that exclude each other, want different settings or must each come before the other are refused, with both sides:

```python
>>> (one.with_(memory_budget=0.9)).composition.settings
Traceback (most recent call last):
thunder_core.errors.RecipeConflict: [TH0211] max-memory-saving sets memory_budget=0.0, but memory_budget=0.9 ...
  fix: leave out max-memory-saving or memory_budget=0.9

```

## Leaving parts out

`--without NAME` leaves a transform or an executor out, by its file or its class, those that clean up each program too.
`--without NAME:MODULE` leaves an executor out of one module and all that the module contains, forward and backward:
the others may still take what is there, and eager PyTorch runs the rest. It is how a wrong or slow kernel is avoided
until it is mended.

    thunder optimize MODEL --without inductor:layers.3.mlp --without cse
    thunder optimize MODEL --without "inductor:layers.*.self_attn"
    thunder recipes explain default --without inductor

A pattern is one of `fnmatch`, for the path of a module or the end of it: `mlp` is every module of that name, and
`layers.3` is in `model.layers.3` as well as in `encoder.layers.3`. A match of a pattern of several operations is left
alone where any of them is in the module; of a region the rest is still fused. The report counts what an executor could
have taken under "Refused", and an artifact obeys it where it traces anew. A name that the recipe or the model has not
is an error, and so is a part that another one needs.

In Python it is a setting, which recipes may state in `setup_config`; what several parts leave out adds up:

```python
>>> less = Default().with_(without=["inductor", "cse"]) + Default().with_(without=["sdpa"])
>>> less.name, less.composition.without
('default + without=cse + without=inductor + without=sdpa', ('cse', 'inductor', 'sdpa'))
>>> less.all_executors()
('packed-linear', 'torch')
>>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU())
>>> torch.equal(thunder.compile(net, "default", without=["inductor:1"])(x), net(x))
True

```

Pass a recipe of your own as a file: `--recipe path/to/recipe.py:Name`. The file may import the files next to it. An
installed package adds recipes with the entry point `thunder.recipes`, and executors and transforms with
`thunder.executors` and `thunder.transforms`. If two packages have a recipe of the same name, the short name is refused
(`AmbiguousName`). Then use the full name: `--recipe my_package.recipes.hf_llama`.

A model's folder may ship one beside its weights, as `thunder_recipe.py`. `thunder optimize`, `bench` and
`inspect-trace` say that it is there, and run it where `--trust-recipe` is given, after they have shown it.
"""


def render() -> str:
    """The whole page."""
    sections = (
        ("The recipes", ("recipe", "models", "beside `default`", "sample"), recipe_rows()),
        ("Their options", ("option", "type", "default", "what it is"), option_rows()),
        ("Settings", ("setting of `jit`", "without a recipe that asks for another"), setting_rows()),
        ("Traits of shipped parts", ("part", *RELATIONS, "provides"), trait_rows()),
    )
    lines = [HEAD]
    for title, columns, rows in sections:
        lines += [f"## {title}", "", table_row(columns), table_row(["---"] * len(columns)), *map(table_row, rows), ""]
    return "\n".join(lines).rstrip() + "\n"


def table_row(cells: Any) -> str:
    """A row of a table."""
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def recipe_rows() -> Iterator[tuple[str, ...]]:
    """Each recipe: for which models it is, and what it does beside `default`."""
    for name in plugins.names("recipes"):
        recipe = recipe_class(name)()
        families = ", ".join(recipe.families) or "any"
        shown = {"beside_default": differences(recipe, recipe_class("default")()), "families": recipe.families}
        yield f"`{name}`", families, "" if name == "default" else compared_with_default(shown), recipe.sample


def option_rows() -> Iterator[tuple[str, ...]]:
    """Each option of each recipe."""
    for name in plugins.names("recipes"):
        for option, field in recipe_class(name).Options.model_fields.items():
            kind = getattr(field.annotation, "__name__", str(field.annotation))
            default = field.get_default(call_default_factory=True)
            yield f"`{name}.{option}`", kind, str(default), field.description or ""


def setting_rows() -> Iterator[tuple[str, str]]:
    """Each setting that `setup_config` may return."""
    yield from ((f"`{name}`", repr(value)) for name, value in DEFAULTS.items())
    yield "`symbolic`", "what the recipe names as `symbolic`"


def trait_rows() -> Iterator[tuple[str, ...]]:
    """Each shipped transform, executor and recipe that has traits."""
    for file, _ in transform_classes():
        plugins.load("transforms", file)
    transforms = {
        kind.__name__: kind
        for kind in subclasses(Transform)
        if kind.__module__.startswith("thunder_core.passes.transforms.")
    }
    parts: dict[str, Any] = dict(sorted(transforms.items()))
    for name in plugins.names("executors"):
        try:
            parts[name] = find_executor(name)
        except EnvironmentLacks:
            continue
    parts |= {name: recipe_class(name) for name in plugins.names("recipes")}
    for name, part in parts.items():
        told = [", ".join(f"`{one}`" for one in getattr(part, trait)) for trait in (*RELATIONS, "provides")]
        if any(told):
            yield f"`{name}`", *told


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
