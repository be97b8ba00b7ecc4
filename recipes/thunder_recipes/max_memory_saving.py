"""The least memory in training: tensors for the backward are recomputed instead of saved."""

from __future__ import annotations

from pydantic import Field

from thunder_core.passes.recipe import RecipeOptions
from thunder_recipes.default import Default


class MaxMemorySaving(Default):
    """The least memory in training: tensors for the backward are recomputed instead of saved.

    With a budget of 0.0, only the tensors between layers are saved, and a step takes more time. Inference is unchanged.
    Add this recipe to another recipe: `--recipe hf-llama3 --recipe max-memory-saving --set budget=0.3`.
    """

    class Options(RecipeOptions):
        """The options that `--set name=value` sets."""

        budget: float = Field(0.0, ge=0, le=1, description="fraction of the bytes for the backward that is still saved")

    def setup_config(self) -> dict[str, object]:
        """Return the setting `memory_budget` of `jit`."""
        return {"memory_budget": self.options["budget"]}
