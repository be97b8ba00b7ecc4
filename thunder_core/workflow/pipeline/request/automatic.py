"""`--recipe auto`: the recipe that fits a model and a machine best, and the reasons."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from thunder_core.foundation import plugins
from thunder_core.passes.recipe import Recipe, unmet_reason
from thunder_core.workflow.pipeline.request.part_names import AUTO, recipe_names
from thunder_core.workflow.pipeline.request.recipes import RecipeArgument, recipe_class

ANY_MODULE, ANY_TRANSFORMER, GENERATION = "default", "hf-transformers", "hf-generate"


@dataclass(frozen=True)
class RecipeChoice:
    """The names of the selected recipes, and the reasons for this selection in words."""

    names: tuple[str, ...]
    reasons: tuple[str, ...]


def asks_for_choice(recipe: RecipeArgument) -> bool:
    """Whether one of the named recipes is `auto`."""
    parts = recipe if isinstance(recipe, list | tuple) else (recipe,)
    return any(AUTO in recipe_names(part) for part in parts if isinstance(part, str))


def with_choice(recipe: RecipeArgument, choice: RecipeChoice) -> tuple[object, ...]:
    """Return the named recipes, with `auto` replaced by the selected recipes."""
    named_parts = recipe if isinstance(recipe, list | tuple) else (recipe,)
    parts = [part for named in named_parts for part in (recipe_names(named) if isinstance(named, str) else (named,))]
    return tuple(name for part in parts for name in (choice.names if part == AUTO else (part,)))


def choose_recipe(
    model_type: str | None, device: torch.device | None = None, target: str = "", *, generates: bool = False
) -> RecipeChoice:
    """Select a recipe for a model type of transformers (None for other modules) and the model's device.

    Among the recipes for the type whose requirements the machine meets, the recipe that adds most to `default` is
    selected. If there is none, the selected recipe is `hf-transformers` for a model type, and `default` for others.
    """
    recipes = list(_recipes_for(model_type))
    reasons, best = [], None
    for recipe in sorted(recipes, key=_preference):
        missing = next(
            (why for _, need in recipe.all_requirements() if (why := unmet_reason(need, target, device))), None
        )
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
        return RecipeChoice((best,), tuple(reasons))
    return RecipeChoice((best, GENERATION), (*reasons, f"{GENERATION} is added because the task is generation"))


def _recipes_for(model_type: str | None) -> Iterator[Recipe]:
    """Yield the recipes for a model type."""
    for listed in plugins.listing("recipes"):
        if listed.reason is None and model_type in (kind := recipe_class(listed.name)).families:
            yield kind()


def _preference(recipe: Recipe) -> tuple[int, int, str]:
    """Return a sort key: first the recipes that add most to `default`, then the recipes for most families."""
    usual = set(map(str, recipe_class(ANY_MODULE)().all_executors()))
    more = {str(executor) for executor in recipe.all_executors()} - usual
    return -len(more) - len(recipe.all_transforms()), -len(recipe.families), recipe.title
