"""The recipe that a user asks for, by name, class or instance, with its options."""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import torch

from thunder_core import plugins
from thunder_core.errors import BadOption, BadRecipe
from thunder_core.models.request import SampleModel
from thunder_core.models.sample_models import SAMPLES
from thunder_core.recipe import Recipe, Transform, lacks, order_transforms


def find_recipe(recipe: str | type[Recipe] | Recipe, options: Mapping[str, object]) -> Recipe:
    """Return the recipe of a name or class, with these options; an instance has its own and takes no more.

    Raises `UnknownName` for a recipe or an option that does not exist, `BadOption` for a value that it cannot take,
    `BadRecipe` for what is no recipe.
    """
    if isinstance(recipe, Recipe):
        if options:
            raise BadOption(
                f"the recipe {recipe.name} is an instance, whose options are chosen: {', '.join(options)}",
                fix="give the options to the recipe's class, or name it",
            )
        return require_supported(recipe)
    kind = recipe_class(recipe) if isinstance(recipe, str) else recipe
    if not isinstance(kind, type) or not issubclass(kind, Recipe):
        raise BadRecipe(
            f"recipe={recipe!r:.80} is no recipe",
            fix='name one recipe (recipe="default"), or give one, with what is added to it: recipe=Default() + plugin',
        )
    return require_supported(kind(**options))


def require_supported(recipe: Recipe) -> Recipe:
    """Return a recipe; raises `BadOption` for one with a compiler whose name is reserved, but not available yet."""
    others = (f'compiler="{part.compiler}"' for part in recipe.recipes if part.compiler != "jit")
    for compiler in others:
        raise BadOption(
            f"the recipe {recipe.name} asks for {compiler}: reserved for composing recipes, and not available yet",
            fix="use a recipe without it",
        )
    return recipe


def recipe_class(name: str) -> type[Recipe]:
    """Return the recipe that a plug-in's file defines; raises `UnknownName` with the nearest names."""
    module = plugins.load("recipes", name)
    classes = [
        member
        for member in vars(module).values()
        if inspect.isclass(member) and issubclass(member, Recipe) and member.__module__ == module.__name__
    ]
    if len(classes) != 1:
        raise BadRecipe(
            f"{module.__name__} defines {len(classes)} recipes where one is expected",
            fix="define one subclass of Recipe in each file",
        )
    return classes[0]


def usable_transforms(recipe: Recipe, target: str = "", device: torch.device | None = None) -> tuple[Transform, ...]:
    """Return a recipe's transforms in their order, without those whose needs the device or the target does not meet."""
    ordered = order_transforms(recipe.all_transforms())
    return tuple(transform for transform in ordered if not any(lacks(need, target, device) for need in transform.needs))


def sample_of(recipe: Recipe) -> SampleModel:
    """Return the small model that a recipe is used with where the user names none; raises `UnknownName`."""
    if recipe.sample not in SAMPLES:
        raise plugins.unknown_name("sample model", recipe.sample, SAMPLES)
    return SAMPLES[recipe.sample]
