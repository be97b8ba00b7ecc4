"""The least memory in training: what a backward needs is computed once more instead of saved."""

from __future__ import annotations

from pydantic import Field

from thunder_core.recipe import RecipeOptions
from thunder_recipes.default import Default


class MaxMemorySaving(Default):
    """The least memory in training: what a backward needs is computed once more instead of saved.

    At a budget of 0.0 only what passes from layer to layer is saved; a step takes more time. Inference
    stays as it is. Add it to another recipe: `--recipe hf-llama3 --recipe max-memory-saving --set budget=0.3`.
    """

    class Options(RecipeOptions):
        """The options that `--set name=value` sets."""

        budget: float = Field(0.0, ge=0, le=1, description="fraction of the saved bytes that may be kept")

    def setup_config(self) -> dict[str, object]:
        """The budget of saved tensors."""
        return {"memory_budget": self.options["budget"]}
