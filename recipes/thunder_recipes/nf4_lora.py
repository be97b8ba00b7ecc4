"""Training of low-rank adapters next to frozen weights in 4 bits: QLoRA."""

from __future__ import annotations

from pydantic import Field

from thunder_core.foundation.options.quality import Quality
from thunder_recipes._quantized import GroupOptions, QuantizedRecipe


class NF4Lora(QuantizedRecipe):
    """Training of low-rank adapters next to frozen weights in 4 bits: QLoRA.

    Weights are in NormalFloat. Each weight gets two low-rank matrices, whose product is zero at first; only these
    matrices are trained. Add this recipe to a model's recipe: `--recipe hf-llama3 --recipe nf4-lora --train`.
    """

    bound = Quality(error=0.5, kl=0.1)

    class Options(GroupOptions):
        """The options that `--set name=value` sets."""

        rank: int = Field(8, ge=1, description="columns of the low-rank matrices")
        alpha: float = Field(16.0, gt=0, description="the product of the matrices is multiplied by alpha / rank")
