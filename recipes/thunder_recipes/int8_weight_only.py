"""Weights in 8 bits, inputs as they are: for decoding, which is bound by the memory that weights are read from."""

from __future__ import annotations

from thunder_core.options.quality import Quality
from thunder_recipes._quantized import QuantizedRecipe


class Int8WeightOnly(QuantizedRecipe):
    """Weights in 8 bits, inputs as they are: for decoding, which is bound by the memory that weights are read from.

    Each row of a weight has a scale. Products are computed in bfloat16 where the processor has instructions for it.
    Add it to a model's recipe: `--recipe hf-llama3 --recipe int8-weight-only`.
    """

    bound = Quality(error=0.05, kl=0.02)
