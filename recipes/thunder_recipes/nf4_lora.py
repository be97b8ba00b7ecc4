"""Training of adapters beside frozen weights in 4 bits: QLoRA."""

from __future__ import annotations

from pydantic import Field

from thunder_core.options.quality import Quality
from thunder_recipes._quantized import GroupOptions, QuantizedRecipe


class NF4Lora(QuantizedRecipe):
    """Training of adapters beside frozen weights in 4 bits: QLoRA.

    Weights are in NormalFloat, and each has two thin matrices beside it, whose product is zero at first; they alone are
    trained. Add it to a model's recipe: `--recipe hf-llama3 --recipe nf4-lora --train`.
    """

    bound = Quality(error=0.5, kl=0.1)

    class Options(GroupOptions):
        """The options that `--set name=value` sets."""

        rank: int = Field(8, ge=1, description="columns of the low-rank matrices")
        alpha: float = Field(16.0, gt=0, description="their product is multiplied by alpha / rank")
