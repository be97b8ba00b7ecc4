"""Writes docs/recipes.md, the page of recipes, their options and their traits, from the recipes themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from thunder_cli.commands.recipes import differences, differences_in_words
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

A recipe packages everything for a family of models: transforms, executors, lookasides, operators and settings. Pass
its name on the command line (`--recipe hf-llama3`) or in Python (`thunder_core.compile(model, "hf-llama3")`). `auto`
chooses a recipe by the model and the machine and prints the reason. To create a template of a recipe with its test,
run `thunder recipes new NAME`; see [write a recipe](../recipes/README.md).

## Combining recipes

Recipes, plug-ins, transforms, executors and lookasides can be added to a recipe or a plug-in, in any order.

    thunder optimize MODEL --recipe hf-llama3 --recipe max-memory-saving --set budget=0.5
    thunder optimize MODEL --recipe hf-llama3 --add-transform "Autocast(dtype=torch.bfloat16)" --add-executor triton
    thunder recipes explain hf-llama3 reduce-overhead

```python
>>> import torch
>>> import thunder_core as thunder
>>> from thunder_recipes.default import Default
>>> from thunder_recipes.max_memory_saving import MaxMemorySaving
>>> combined, reordered = Default() + MaxMemorySaving(), MaxMemorySaving() + Default()
>>> combined.name, combined.name == reordered.name
('default + max-memory-saving', True)
>>> model, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
>>> compiled = thunder.compile(model, ["default", "max-memory-saving"], budget=0.5)
>>> torch.equal(compiled(x), model(x))
True

```

The traits of the parts and the recipes' lists of executors determine the order of the parts. If these leave a choice,
the names decide. The order in which you add parts never matters. `thunder recipes explain` prints the order with the
reasons, and so does `reasons` in Python:

```python
>>> from thunder_core.recipe.composition import reasons
>>> for kind, name, why in reasons((combined.with_(executors=["triton"])).composition):
...     print(kind, name, *why, sep=" | ")
executor | triton
executor | sdpa | triton comes before sdpa
executor | packed-linear | default lists sdpa before packed-linear
executor | packed-attention | default lists packed-linear before packed-attention
executor | inductor | default lists packed-attention before inductor
executor | torch | it runs all operations that no other executor has claimed

```

Parts that exclude each other, request different settings or must each come before the other are refused. The error
names both parts:

```python
>>> (combined.with_(memory_budget=0.9)).composition.settings
Traceback (most recent call last):
thunder_core.errors.RecipeConflict: [TH0211] max-memory-saving sets memory_budget=0.0, but memory_budget=0.9 ...
  fix: leave out max-memory-saving or memory_budget=0.9

```

## Leaving parts out

`--without NAME` leaves a transform or an executor out, by the name of its file or class. This includes the transforms
that clean up each program. `--without NAME:MODULE` leaves an executor out of one module and its submodules, forward and
backward: other executors may still take the operations there, and eager PyTorch runs the rest. Use this option to avoid
a wrong or slow kernel until it is fixed.

    thunder optimize MODEL --without inductor:layers.3.mlp --without cse
    thunder optimize MODEL --without "inductor:layers.*.self_attn"
    thunder recipes explain default --without inductor

A module pattern is matched by `fnmatch` with the path of a module or the end of the path: `mlp` matches every module of
that name, and `layers.3` matches `model.layers.3` and `encoder.layers.3`. If a match of a pattern has an operation in
the module, the executor takes none of the operations of the match. Operations outside of the module are still fused.
Under "Operations that executors refused", the report counts the operations that an executor could have taken. An
artifact applies the setting when it traces again. It is an error to name a part or a module that does not exist, or to
leave out a part that another part needs.

In Python, `without` is a setting, which recipes may return from `setup_config`; the values of several parts add up:

```python
>>> less = Default().with_(without=["inductor", "cse"]) + Default().with_(without=["sdpa"])
>>> less.name, less.composition.without
('default + without=cse + without=inductor + without=sdpa', ('cse', 'inductor', 'sdpa'))
>>> less.all_executors()
('packed-linear', 'packed-attention', 'torch')
>>> net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU())
>>> torch.equal(thunder.compile(net, "default", without=["inductor:1"])(x), net(x))
True

```

Pass your own recipe as a file: `--recipe path/to/recipe.py:Name`. The file may import the files next to it. An
installed package adds recipes with the entry point `thunder.recipes`, and executors and transforms with
`thunder.executors` and `thunder.transforms`. If two packages have a recipe of the same name, the short name is refused
(`AmbiguousName`). Then use the full name: `--recipe my_package.recipes.hf_llama`.

A model's folder may contain a recipe next to its weights, as `thunder_recipe.py`. `thunder optimize`, `bench` and
`inspect-trace` report the recipe. With `--trust-recipe`, they show the recipe and then run it.
"""


def render() -> str:
    """Return the whole page."""
    sections = (
        ("The recipes", ("recipe", "models", "compared with `default`", "sample"), recipe_rows()),
        ("Options", ("option", "type", "default", "description"), option_rows()),
        ("Settings", ("setting of `jit`", "default value"), setting_rows()),
        ("Traits of shipped parts", ("part", *RELATIONS, "provides"), trait_rows()),
    )
    lines = [HEAD]
    for title, columns, rows in sections:
        lines += [f"## {title}", "", table_row(columns), table_row(["---"] * len(columns)), *map(table_row, rows), ""]
    return "\n".join(lines).rstrip() + "\n"


def table_row(cells: Any) -> str:
    """Return a row of a table."""
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def recipe_rows() -> Iterator[tuple[str, ...]]:
    """Yield a row for each recipe: its models, and its differences from `default`."""
    for name in plugins.names("recipes"):
        recipe = recipe_class(name)()
        families = ", ".join(recipe.families) or "any"
        shown = {
            "differences_from_default": differences(recipe, recipe_class("default")()),
            "families": recipe.families,
        }
        yield f"`{name}`", families, "" if name == "default" else differences_in_words(shown), recipe.sample


def option_rows() -> Iterator[tuple[str, ...]]:
    """Yield a row for each option of each recipe."""
    for name in plugins.names("recipes"):
        for option, field in recipe_class(name).Options.model_fields.items():
            kind = getattr(field.annotation, "__name__", str(field.annotation))
            default = field.get_default(call_default_factory=True)
            yield f"`{name}.{option}`", kind, str(default), field.description or ""


def setting_rows() -> Iterator[tuple[str, str]]:
    """Yield a row for each setting that `setup_config` may return."""
    yield from ((f"`{name}`", repr(value)) for name, value in DEFAULTS.items())
    yield "`symbolic`", "the recipe's attribute `symbolic`"


def trait_rows() -> Iterator[tuple[str, ...]]:
    """Yield a row for each shipped transform, executor and recipe that has traits."""
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
        relations = [", ".join(f"`{name}`" for name in getattr(part, trait)) for trait in (*RELATIONS, "provides")]
        if any(relations):
            yield f"`{name}`", *relations


if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
