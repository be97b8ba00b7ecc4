"""Recipes: named declarations of how a model is optimized, by which executors, and how exact the result must be.

The names below are loaded at their first use, because a recipe's options are read from its source without PyTorch.
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
        order_transforms,
        recipes_for,
        unmet_reason,
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
    "order_transforms",
    "recipes_for",
    "unmet_reason",
]

__getattr__ = plugins.lazy_face(__name__, dict.fromkeys(__all__, "recipe"))
