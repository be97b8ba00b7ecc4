"""The tolerance of an artifact: what it says of itself, within what its recipe allows, or what its user asks for."""

from __future__ import annotations

import torch

from thunder_core.foundation.errors import ThunderError
from thunder_core.foundation.options.tolerance import Tolerance, asked_tolerance
from thunder_core.passes.recipe import Recipe
from thunder_core.workflow.artifact.format.read import Artifact
from thunder_core.workflow.pipeline.request.part_names import recipe_names
from thunder_core.workflow.pipeline.request.recipes import find_recipe


def tolerance_of(artifact: Artifact, dtype: torch.dtype, asked: tuple[str, ...] = ()) -> Tolerance:
    """The tolerance that an artifact keeps, where its recipe allows no less; `asked` are its user's own bounds.

    An artifact cannot loosen it: whoever wrote one could have written any number.
    """
    bound = recipes_tolerance(artifact, dtype)
    stored = artifact.manifest.tolerance
    kept = bound if stored is None else bound.or_stricter(Tolerance(**stored.model_dump()))
    return asked_tolerance("--tolerance", asked, kept)


def recipes_tolerance(artifact: Artifact, dtype: torch.dtype) -> Tolerance:
    """The tolerance of the recipes that an artifact names, as far as they are installed here.

    That of a recipe in a file of its user, which nobody names here, is the usual one.
    """
    manifest = artifact.manifest
    names = [name for name in recipe_names(manifest.recipe or "default") if is_installed(name)]
    try:
        return find_recipe(names or "default", manifest.options if names else {}).loosest_tolerance(dtype)
    except ThunderError:  # options of parts that are not here
        return find_recipe(names, {}).loosest_tolerance(dtype) if names else Recipe().tolerance(dtype)


def is_installed(name: str) -> bool:
    """Whether a recipe of that name is installed here."""
    try:
        find_recipe(name, {})
    except ThunderError:
        return False
    return True
