"""Weights in 8 bits and unchanged inputs: for decoding, where reading the weights limits the speed."""

from __future__ import annotations

from thunder_core.foundation.options.quality import Quality
from thunder_recipes._quantized import QuantizedRecipe


class Int8WeightOnly(QuantizedRecipe):
    """Weights in 8 bits and unchanged inputs: for decoding, where reading the weights limits the speed.

    Each row of a weight has a scale. Products are computed in bfloat16 if the processor has instructions for it. Add
    this recipe to a model's recipe: `--recipe hf-llama3 --recipe int8-weight-only`.
    """

    bound = Quality(error=0.05, kl=0.02)
