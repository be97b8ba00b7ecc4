"""The tolerance for validating an artifact: the user's, or the artifact's own within the limits of its recipe."""

from __future__ import annotations

import torch

from thunder_core.foundation.errors import ThunderError
from thunder_core.foundation.options.tolerance import Tolerance, requested_tolerance
from thunder_core.passes.recipe import Recipe
from thunder_core.workflow.artifact.format.read import Artifact
from thunder_core.workflow.pipeline.request.part_names import recipe_names
from thunder_core.workflow.pipeline.request.recipes import find_recipe


def tolerance_of(artifact: Artifact, dtype: torch.dtype, bounds: tuple[str, ...] = ()) -> Tolerance:
    """Return the tolerance for an artifact; `bounds` are the user's values of `--tolerance`.

    The tolerance in the artifact is used only if it is stricter than its recipe's tolerance, because the author of the
    artifact could have written any number.
    """
    recipe_tolerance = recipes_tolerance(artifact, dtype)
    stored = artifact.manifest.tolerance
    limit = recipe_tolerance if stored is None else recipe_tolerance.or_stricter(Tolerance(**stored.model_dump()))
    return requested_tolerance("--tolerance", bounds, limit)


def recipes_tolerance(artifact: Artifact, dtype: torch.dtype) -> Tolerance:
    """Return the tolerance of the recipes that an artifact names, if they are installed here.

    A recipe in a user's file, which is not installed, has the default tolerance.
    """
    manifest = artifact.manifest
    names = [name for name in recipe_names(manifest.recipe or "default") if is_installed(name)]
    try:
        return find_recipe(names or "default", manifest.options if names else {}).loosest_tolerance(dtype)
    except ThunderError:  # options of parts that are not installed
        return find_recipe(names, {}).loosest_tolerance(dtype) if names else Recipe().tolerance(dtype)


def is_installed(name: str) -> bool:
    """Whether a recipe of this name is installed."""
    try:
        find_recipe(name, {})
    except ThunderError:
        return False
    return True
