"""`--recipe auto`: the recipe that fits a model and a machine best, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from thunder_core.foundation import plugins
from thunder_core.passes.recipe import Recipe, lacks
from thunder_core.workflow.pipeline.request.part_names import AUTO, recipe_names
from thunder_core.workflow.pipeline.request.recipes import Named, recipe_class

ANY_MODULE, ANY_TRANSFORMER, GENERATION = "default", "hf-transformers", "hf-generate"


@dataclass(frozen=True)
class Choice:
    """The recipes that were chosen, by their names, with the reasons, in words, for each and against others."""

    names: tuple[str, ...]
    reasons: tuple[str, ...]


def asks_for_choice(recipe: Named) -> bool:
    """Whether one of the recipes that are named is to be chosen."""
    given = recipe if isinstance(recipe, list | tuple) else (recipe,)
    return any(AUTO in recipe_names(one) for one in given if isinstance(one, str))


def with_choice(recipe: Named, choice: Choice) -> tuple[object, ...]:
    """The recipes that are named, with those that were chosen in the place of `auto`."""
    given = recipe if isinstance(recipe, list | tuple) else (recipe,)
    parts = [part for one in given for part in (recipe_names(one) if isinstance(one, str) else (one,))]
    return tuple(chosen for part in parts for chosen in (choice.names if part == AUTO else (part,)))


def choose_recipe(
    model_type: str | None, device: torch.device | None = None, target: str = "", *, generates: bool = False
) -> Choice:
    """Choose a recipe for a model type of transformers, None for any other module, and the device that it is on.

    Of the recipes that are made for the type, the one is taken that does most of what `default` does not do, if the
    machine has what it requires; else `hf-transformers`, or `default`.
    """
    fitting = list(_fitting(model_type))
    reasons, best = [], None
    for recipe in sorted(fitting, key=_does):
        missing = next((why for _, need in recipe.all_requirements() if (why := lacks(need, target, device))), None)
        if missing is not None:
            reasons.append(f"{recipe.title} is left out: {missing}")
        elif best is None:
            best = recipe.title
            reasons.insert(0, f"{best} is made for {model_type}")
    if best is None:
        best = ANY_TRANSFORMER if model_type else ANY_MODULE
        what = f"{model_type} models" if model_type else "modules from other libraries than transformers"
        reasons.insert(0, f"{best} supports {what}, and no other recipe does")
    if not generates:
        return Choice((best,), tuple(reasons))
    return Choice((best, GENERATION), (*reasons, f"{GENERATION} is added because the task is generation"))


def _fitting(model_type: str | None) -> Iterator[Recipe]:
    """The recipes that are made for a model type."""
    for listed in plugins.listing("recipes"):
        if listed.reason is None and model_type in (kind := recipe_class(listed.name)).families:
            yield kind()


def _does(recipe: Recipe) -> tuple[int, int, str]:
    """A key that is least for the recipe that does most beside `default`, and of those that do the same is broadest."""
    usual = set(map(str, recipe_class(ANY_MODULE)().all_executors()))
    more = {str(one) for one in recipe.all_executors()} - usual
    return -len(more) - len(recipe.all_transforms()), -len(recipe.families), recipe.title
