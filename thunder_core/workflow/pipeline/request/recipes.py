"""The recipe that a user requests, by name, class or instance, with its options."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import torch

from thunder_core.backend.claiming.executor import executor_in
from thunder_core.compilation.compiler import CLEANUP_TRANSFORMS
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadOption, BadRecipe, ThunderError
from thunder_core.foundation.similar_names import unknown_name
from thunder_core.passes.recipe import Plugin, Recipe, Transform, unmet_reason
from thunder_core.passes.recipe.options import hyphenate, require_option_names
from thunder_core.passes.recipe.plugin import as_composable, compose
from thunder_core.passes.recipe.recipe import without_parts
from thunder_core.tracing.extension.authorship import authors_error, describe_failure
from thunder_core.workflow.models.request.request import SampleModel
from thunder_core.workflow.models.request.sample_models import SAMPLES
from thunder_core.workflow.pipeline.request.part_names import (
    AUTO,
    FILE_SUFFIX,
    file_and_name,
    module_of_transform,
    parse_call,
    recipe_file,
    recipe_names,
)
from thunder_core.workflow.pipeline.request.request import Request

RecipeArgument: TypeAlias = str | type[Recipe] | Recipe | Sequence[object]


def find_recipe(recipe: RecipeArgument, options: Mapping[str, object]) -> Recipe:
    """Return the recipe of a name or a class, with these options; an instance accepts no options.

    Several recipes, in a list or joined by `+` in a name, are combined; their order does not matter. The list may also
    contain plug-ins, transforms, executors and lookasides. If several recipes have an option, it is written as
    `recipe.option`. Raises `UnknownName` for a recipe or an option that does not exist, `BadOption` for an invalid
    value, `BadRecipe` for an object that is not a recipe, and `RecipeConflict` for a recipe that is passed twice with
    different options.
    """
    named_parts = [named_part(part) for part in recipe_parts(recipe)]
    kinds = list(dict.fromkeys(part for part in named_parts if isinstance(part, type)))
    parts = [*kinds, *(part for part in named_parts if not isinstance(part, type))]
    if options and not kinds:
        raise BadOption(
            f"the recipe {recipe_of(parts).name} is an instance, so its options are already set: {', '.join(options)}",
            fix="pass the options to the recipe's class, or pass the name of the recipe",
        )
    chosen = options_by_recipe(kinds, options)
    instances = [part(**chosen[part]) if isinstance(part, type) else part for part in parts]
    return instances[0] if len(instances) == 1 and isinstance(instances[0], Recipe) else recipe_of(instances)


def recipe_parts(recipe: RecipeArgument) -> tuple[object, ...]:
    """Return the parts of a recipe argument as a tuple."""
    if isinstance(recipe, str):
        return recipe_names(recipe)
    if isinstance(recipe, list | tuple):
        return tuple(part for named in recipe for part in (recipe_names(named) if isinstance(named, str) else (named,)))
    return (recipe,)


def named_part(part: object) -> Any:
    """Return the class of a recipe, or a part that can be added to a recipe; raise `BadRecipe` for anything else."""
    if isinstance(part, str):
        return recipe_class(part)
    if isinstance(part, type) and issubclass(part, Recipe):
        return part
    try:
        return as_composable(part)
    except BadRecipe:
        raise not_a_recipe_error(part) from None


def recipe_of(parts: Iterable[Any]) -> Recipe:
    """Combine the parts into one recipe; raise `BadRecipe` if no part is a recipe."""
    composed = compose(parts) if (parts := list(parts)) else None
    if not isinstance(composed, Recipe):
        raise not_a_recipe_error(composed)
    return composed


def not_a_recipe_error(value: object) -> BadRecipe:
    """Return the error for an object that is not a recipe."""
    return BadRecipe(
        f"recipe={value!r:.80} is not a recipe",
        fix='name one recipe (recipe="default") or several, or pass instances: recipe=Default() + plugin',
    )


def options_by_recipe(
    kinds: Sequence[type[Recipe]], options: Mapping[str, object]
) -> Mapping[type[Recipe], dict[str, object]]:
    """Return the options of each recipe; raise `UnknownName` for unknown options, `BadOption` for ambiguous ones."""
    chosen: dict[type[Recipe], dict[str, object]] = {kind: {} for kind in kinds}
    for name, value in options.items():
        title, _, option = name.rpartition(".")
        owners = [kind for kind in kinds if not title or hyphenate(kind.__name__) == title]
        recipes_with_option = [kind for kind in owners if option in kind.Options.model_fields]
        if len(recipes_with_option) > 1:
            titles = [f"{hyphenate(kind.__name__)}.{option}" for kind in recipes_with_option]
            raise BadOption(f"several recipes have the option {option}", fix=f"name the recipe: {' or '.join(titles)}")
        if not recipes_with_option and len(kinds) > 1:
            qualified_options = [
                f"{hyphenate(kind.__name__)}.{field}" for kind in kinds for field in kind.Options.model_fields
            ]
            require_option_names(" + ".join(hyphenate(kind.__name__) for kind in kinds), qualified_options, [name])
        owner = recipes_with_option[0] if recipes_with_option else kinds[0]
        if option in chosen[owner]:
            raise BadOption(f"the option {option} of {hyphenate(owner.__name__)} is given twice", fix="give it once")
        chosen[owner][option if recipes_with_option else name] = value
    return chosen


def requested_recipe(request: Request) -> Recipe:
    """Return the recipe of a request, with its additions and removals.

    Raises the errors of `find_recipe` and `Composition.require_consistent`.
    """
    requested: tuple[Any, ...] = request.recipe if isinstance(request.recipe, tuple) else (request.recipe,)
    transforms = map(named_transform, request.add_transform)
    executors = map(named_executor, request.add_executor)
    added = [*transforms, *executors, *without_parts(request.without)]
    recipe = find_recipe((*requested, *added) if added or len(requested) > 1 else requested[0], request.options)
    recipe.composition.require_consistent(CLEANUP_TRANSFORMS)
    return recipe.acquired_by(request.compiler) if request.compiler else recipe


def require_keepable(recipe: Recipe) -> None:
    """Raise `BadOption` for a recipe whose programs cannot be saved in an artifact."""
    if recipe.acquires_by != "jit":
        raise BadOption(
            f"the recipe {recipe.name} traces with {recipe.acquires_by}, whose programs cannot be saved in an artifact",
            fix="measure it with `thunder bench`, use it in thunder_core.compile, or use a recipe that traces with jit",
        )


def recipe_class(name: str) -> type[Recipe]:
    """Return the recipe with a name, or the recipe in the file with a path.

    Raises `UnknownName` with the nearest names, `BadRecipe` for a file that cannot be loaded or has no such recipe, and
    `BadOption` for `auto`.
    """
    if name == AUTO:
        raise BadOption(
            "`auto` chooses a recipe by the model and the machine, but there is no model",
            fix="name a recipe, or add a model: thunder optimize MODEL --recipe auto",
        )
    if FILE_SUFFIX not in name:
        return only_recipe(plugins.load("recipes", name))
    path, kind = recipe_file(name)
    return only_recipe(load_recipe_file(path), kind)


def load_recipe_file(path: Path) -> ModuleType:
    """Return the module in a user's file; raise `BadRecipe` for any error in its code."""
    try:
        return plugins.load_file(path)
    except ThunderError:
        raise
    except (Exception, SystemExit, GeneratorExit) as error:
        raise loading_error(path, error) from error


def named_executor(name: str) -> Plugin:
    """Return a plug-in with one executor, given by name or by the path of its file.

    Raises `BadRecipe` for a file that cannot be loaded, or has no such executor.
    """
    if FILE_SUFFIX not in name:
        return Plugin(name, executors=(name,))
    path, own = file_and_name(name, "an executor")
    executor = executor_in(load_recipe_file(path), str(path), own)
    return Plugin(executor.name, executors=(executor,))


def loading_error(path: Path, error: BaseException) -> BadRecipe:
    """Return the error for a file whose code raised an error, or tried to end the process."""
    thunder_error = authors_error(error)
    reason = describe_failure(error) if isinstance(error, SystemExit) else f"{type(error).__name__}: {error}"
    where = thunder_error.where if thunder_error is not None else None
    return BadRecipe(f"{path} cannot be loaded: {reason}", fix="correct the error in the file", where=where)


def only_recipe(module: ModuleType, name: str = "") -> type[Recipe]:
    """Return the recipe that a module defines; of several, the recipe with this name; raise `BadRecipe`."""
    members = dict.fromkeys(member for member in vars(module).values() if inspect.isclass(member))
    classes = [kind for kind in members if issubclass(kind, Recipe) and kind.__module__ == module.__name__]
    chosen = [kind for kind in classes if name in ("", kind.__name__)]
    if len(chosen) != 1:
        names = ", ".join(kind.__name__ for kind in classes)
        source = module.__file__ or module.__name__
        raise BadRecipe(
            f"{source} defines no recipe called {name}"
            if name
            else f"{source} defines {len(classes)} recipes instead of one",
            fix=f"name one of: {names}" if name and names else "define one subclass of Recipe in each file",
        )
    return chosen[0]


def named_transform(text: str) -> Transform:
    """Return the transform for a text such as `Autocast(dtype=torch.float16)`, with its options.

    Raises `BadOption` for an invalid text or option, and `UnknownName` for a name that does not exist.
    """
    name, options = parse_call(text)
    module = plugins.load("transforms", module_of_transform(name))
    kinds = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Transform)]
    own = [kind for kind in kinds if kind.__module__ == module.__name__]
    named = [kind for kind in own if kind.__name__ == name] or own
    if len(named) != 1:
        raise unknown_name("transform", name, [kind.__name__ for kind in own])
    kind = named[0]
    try:
        return kind(**{option: option_value(node) for option, node in options.items()})
    except (TypeError, ValueError) as error:
        option_names = (
            ", ".join(field.name for field in dataclasses.fields(kind)) if dataclasses.is_dataclass(kind) else ""
        )
        raise BadOption(f"{text} is not valid: {error}", fix=f"the options are: {option_names or 'none'}") from None


def option_value(node: ast.expr) -> object:
    """Return the value of an option in Python notation, a literal or a dtype; raise ValueError."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "torch":
        value = getattr(torch, node.attr, None)
        if isinstance(value, torch.dtype):
            return value
        raise ValueError(f"torch.{node.attr} is not a dtype")
    return ast.literal_eval(node)


def usable_transforms(
    recipe: Recipe, target: str = "", device: torch.device | None = None, more: Sequence[Transform] = ()
) -> tuple[Transform, ...]:
    """Return a recipe's transforms in order, with the transforms `more`.

    Transforms whose requirements the device or the target does not meet are omitted.
    """
    return tuple(
        transform
        for transform in recipe.composition.transforms(more).in_order()
        if not any(unmet_reason(need, target, device) for need in transform.requirements)
    )


def sample_of(recipe: Recipe) -> SampleModel:
    """Return the small model that a recipe uses if the user names no model; raise `UnknownName`."""
    if (name := recipe.shared_sample) not in SAMPLES:
        raise unknown_name("sample model", name, SAMPLES)
    return SAMPLES[name]
