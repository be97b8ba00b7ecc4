"""The device, the dtype and the length of texts if the user names none: the recipe's own, or the usual."""

from __future__ import annotations

from dataclasses import replace

import torch

from thunder_core.foundation.errors import RecipeConflict
from thunder_core.passes.recipe import Recipe
from thunder_core.workflow.models.request.device import best_device, is_available, named_device, parse_device
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline.request.samples import USUAL_SEQUENCE

GPU = torch.device("cuda")
CPU = torch.device("cpu")


def with_placement(model: ModelRequest, recipe: Recipe, target: str = "") -> ModelRequest:
    """Return the request with a device, and with the recipe's dtype if it has one for the program's device.

    The model of a program for a `target` is loaded on the CPU. Raises `UnknownName` and `DeviceNotAvailable` for a
    requested device, and `RecipeConflict` for combined recipes that want different devices or dtypes.
    """
    named = wanted_by_recipes(recipe, "device")
    recipe_device = named_device(named) if named else None
    device = parse_device(model.device) if model.device is not None else CPU if target else chosen_device(recipe_device)
    runs_on = GPU if target else device
    if model.dtype is None and (recipe_device is None or recipe_device.type == runs_on.type):
        model = replace(model, dtype=wanted_by_recipes(recipe, "dtype") or None)
    return replace(model, device=str(device))


def chosen_device(recipe_device: torch.device | None) -> torch.device:
    """Return the device that a recipe wants, if it is available, or the best available device."""
    return recipe_device if recipe_device is not None and is_available(recipe_device) else best_device()


def wanted_by_recipes(recipe: Recipe, matter: str) -> str:
    """Return the device or the dtype that the combined recipes want; empty if no recipe wants one.

    Raises `RecipeConflict` if recipes want different values.
    """
    recipe_by_value = {getattr(part, matter): part.name for part in reversed(recipe.recipes) if getattr(part, matter)}
    if len(recipe_by_value) > 1:
        wishes = ", ".join(f"{name} wants {value}" for value, name in recipe_by_value.items())
        raise RecipeConflict(f"the recipes differ in their {matter}: {wishes}", fix="add recipes that agree")
    return next(iter(recipe_by_value), "")


def usual_sequence(recipe: Recipe, device: torch.device) -> int:
    """Return the default number of tokens in a text on a device: the longest of the combined recipes, or the usual."""
    lengths = (part.seq for part in recipe.recipes if not part.device or named_device(part.device).type == device.type)
    return max(lengths, default=0) or USUAL_SEQUENCE


def pads_texts(recipe: Recipe) -> bool:
    """Whether random texts have padding and an attention mask: unless one of the combined recipes leaves them out."""
    return all(part.padded for part in recipe.recipes)
