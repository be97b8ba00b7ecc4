"""Text generation by models from Hugging Face: `generate` uses a static cache, which is updated in place."""

from __future__ import annotations

import torch

from thunder_core.foundation.errors import RecipeMismatch
from thunder_core.passes.recipe import Transform
from thunder_core.passes.transforms.static_cache import GenerateWithStaticCache
from thunder_recipes.hf_transformers import HFTransformers


class HFGenerate(HFTransformers):
    """Text generation by models from Hugging Face: `generate` uses a static cache, which is updated in place.

    Two programs, one for prompts and one for all later tokens, serve all lengths of text and cache.
    """

    sample = "llama"

    def validate(self, model: torch.nn.Module) -> None:
        """Raise `RecipeMismatch` for a model that cannot generate."""
        super().validate(model)
        if not (callable(getattr(model, "generate", None)) and can_generate(model)):
            raise RecipeMismatch(
                f"recipe {self.name} is for models that generate text; this model is of class {type(model).__name__}",
                fix="use the recipe `hf-transformers`, or load the model with its head (`AutoModelForCausalLM`)",
            )

    def setup_transforms(self) -> tuple[Transform, ...]:
        """Return the transforms, including the static cache."""
        return (*super().setup_transforms(), GenerateWithStaticCache())


def can_generate(model: torch.nn.Module) -> bool:
    """Whether a model of transformers reports that it can generate."""
    method = getattr(model, "can_generate", None)
    return bool(callable(method) and method())
