"""Weights in 4 bits with a scale for each group of columns: the smallest artifacts, for decoding."""

from __future__ import annotations

from thunder_core.foundation.options.quality import Quality
from thunder_recipes._quantized import GroupOptions, QuantizedRecipe


class Int4WeightOnly(QuantizedRecipe):
    """Weights in 4 bits with a scale for each group of columns: the smallest artifacts, for decoding.

    The token embeddings and the LM head have 8 bits. With `--calibrate`, the inputs of a layer determine the range of
    each group. Add this recipe to a model's recipe: `--recipe hf-llama3 --recipe int4-weight-only`.
    """

    bound = Quality(error=0.5, kl=0.1)

    class Options(GroupOptions):
        """The options that `--set name=value` sets."""
