"""Recipes: named declarations of what is done to a model, by whom, and how exact the result has to be.

The names below are loaded when they are first used: a recipe's options are read from its source, without PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from thunder_core.foundation import plugins

if TYPE_CHECKING:
    from thunder_core.passes.recipe.recipe import (
        TOLERANCES,
        Cuda,
        Degradation,
        Lookaside,
        Package,
        Plugin,
        Processor,
        Recipe,
        RecipeOptions,
        Requirement,
        Tolerance,
        Transform,
        lacks,
        order_transforms,
        recipes_for,
    )

__all__ = [
    "TOLERANCES",
    "Cuda",
    "Degradation",
    "Lookaside",
    "Package",
    "Plugin",
    "Processor",
    "Recipe",
    "RecipeOptions",
    "Requirement",
    "Tolerance",
    "Transform",
    "lacks",
    "order_transforms",
    "recipes_for",
]

__getattr__ = plugins.lazy_face(__name__, dict.fromkeys(__all__, "recipe"))
