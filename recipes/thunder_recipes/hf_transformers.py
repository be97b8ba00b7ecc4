"""Every model of the transformers library, with its outputs and caches: like default, but for these models only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch

from thunder_core.foundation.errors import RecipeMismatch
from thunder_core.foundation.model_configs import model_type_of
from thunder_core.foundation.transformers_versions import CACHE_NAMES
from thunder_core.passes.recipe import Recipe

# The sizes that vary in calls with a cache, with their bounds. The bounds begin at 2, because calls with a single token
# have a separate program.
WITH_CACHE: Mapping[str, tuple[int | None, int | None] | None] = {
    f"{dimension} with {cache}": bounds
    for cache in CACHE_NAMES
    for dimension, bounds in (("batch", None), ("seq", (2, None)), ("cache", None), ("kept", (2, None)))
}


class HFTransformers(Recipe):
    """Every model of the transformers library, with its outputs and caches: like `default`, for these models."""

    executors: ClassVar[tuple[str, ...]] = ("sdpa", "packed-linear", "packed-attention", "inductor", "torch")
    symbolic = WITH_CACHE

    def validate(self, model: torch.nn.Module) -> None:
        """Raise `RecipeMismatch` for a module that has no config of transformers."""
        if model_type_of(model) is None:
            raise RecipeMismatch(
                f"recipe {self.name} is for models of the transformers library; this model is of class "
                f"{type(model).__name__}",
                fix="use the recipe `default`, which accepts every torch.nn.Module",
            )
        super().validate(model)
