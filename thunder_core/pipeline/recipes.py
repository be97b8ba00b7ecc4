"""The recipe that a user asks for, by name, class or instance, with its options."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from thunder_core import plugins
from thunder_core.errors import BadOption, BadRecipe
from thunder_core.models.request import SampleModel
from thunder_core.models.sample_models import SAMPLES
from thunder_core.recipe import Recipe, Transform, lacks
from thunder_core.recipe.options import hyphenated, require_option_names
from thunder_core.recipe.plugin import as_summand, total

FILE_SUFFIX = ".py"  # of a recipe in a file, which is named by its path


Named: TypeAlias = str | type[Recipe] | Recipe | Sequence[object]


def find_recipe(recipe: Named, options: Mapping[str, object]) -> Recipe:
    """Return the recipe of a name or class, with these options; an instance has its own and takes no more.

    Several, in a list or joined by `+` in a name, are added to each other, in whatever order; among them may be
    plug-ins, transforms, executors and lookasides. An option is that of the one recipe that has it, or is written
    `recipe.option`. Raises `UnknownName` for a recipe or an option that does not exist, `BadOption` for a value that it
    cannot take, `BadRecipe` for what is no recipe, and `RecipeConflict` for one that is given twice with two options.
    """
    given = [named_part(part) for part in listed_parts(recipe)]
    kinds = list(dict.fromkeys(part for part in given if isinstance(part, type)))
    parts = [*kinds, *(part for part in given if not isinstance(part, type))]
    if options and not kinds:
        raise BadOption(
            f"the recipe {recipe_of(parts).name} is an instance, whose options are chosen: {', '.join(options)}",
            fix="give the options to the recipe's class, or name it",
        )
    chosen = options_by_recipe(kinds, options)
    made = [part(**chosen[part]) if isinstance(part, type) else part for part in parts]
    found = made[0] if len(made) == 1 and isinstance(made[0], Recipe) else recipe_of(made)
    return require_supported(found)


def listed_parts(recipe: Named) -> tuple[object, ...]:
    """Return the parts of what is given as a recipe, one by one."""
    if isinstance(recipe, str):
        is_file = FILE_SUFFIX in recipe
        return (recipe,) if is_file else tuple(name.strip() for name in recipe.split("+"))
    if isinstance(recipe, list | tuple):
        return tuple(part for one in recipe for part in (listed_parts(one) if isinstance(one, str) else (one,)))
    return (recipe,)


def named_part(part: object) -> Any:
    """Return the class of a recipe that is named, or a part that can be added; raises `BadRecipe` for anything else."""
    if isinstance(part, str):
        return recipe_class(part)
    if isinstance(part, type) and issubclass(part, Recipe):
        return part
    try:
        return as_summand(part)
    except BadRecipe:
        raise no_recipe(part) from None


def recipe_of(parts: Iterable[Any]) -> Recipe:
    """Return the sum of the parts; raises `BadRecipe` where no recipe is among them."""
    found = total(parts) if (parts := list(parts)) else None
    if not isinstance(found, Recipe):
        raise no_recipe(found)
    return found


def no_recipe(given: object) -> BadRecipe:
    """Return the error for what is given as a recipe and is none."""
    return BadRecipe(
        f"recipe={given!r:.80} is no recipe",
        fix='name one recipe (recipe="default") or several, or give them with what is added: recipe=Default() + plugin',
    )


def options_by_recipe(
    kinds: Sequence[type[Recipe]], options: Mapping[str, object]
) -> Mapping[type[Recipe], dict[str, object]]:
    """Return the options of each recipe; raises `UnknownName` for those of none, `BadOption` for those of several."""
    chosen: dict[type[Recipe], dict[str, object]] = {kind: {} for kind in kinds}
    for name, value in options.items():
        title, _, option = name.rpartition(".")
        owners = [kind for kind in kinds if not title or hyphenated(kind.__name__) == title]
        having = [kind for kind in owners if option in kind.Options.model_fields]
        if len(having) > 1:
            titles = [f"{hyphenated(kind.__name__)}.{option}" for kind in having]
            raise BadOption(f"the option {option} is one of several recipes", fix=f"name one: {' or '.join(titles)}")
        if not having and len(kinds) > 1:
            known = [f"{hyphenated(kind.__name__)}.{field}" for kind in kinds for field in kind.Options.model_fields]
            require_option_names(" + ".join(hyphenated(kind.__name__) for kind in kinds), known, [name])
        chosen[having[0] if having else kinds[0]][option if having else name] = value
    return chosen


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


def usable_transforms(
    recipe: Recipe, target: str = "", device: torch.device | None = None, more: Sequence[Transform] = ()
) -> tuple[Transform, ...]:
    """Return a recipe's transforms in their order, with `more` that come with every program.

    Those whose requirements the device or the target does not meet are left out.
    """
    return tuple(
        transform
        for transform in recipe.composition.transforms(more).ordered()
        if not any(lacks(need, target, device) for need in transform.requirements)
    )


def sample_of(recipe: Recipe) -> SampleModel:
    """Return the small model that a recipe is used with where the user names none; raises `UnknownName`."""
    if (name := recipe.shared_sample) not in SAMPLES:
        raise plugins.unknown_name("sample model", name, SAMPLES)
    return SAMPLES[name]
