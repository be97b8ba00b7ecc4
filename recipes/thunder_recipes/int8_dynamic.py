"""Weights and inputs of linear layers in 8 bits, multiplied as integers: for servers, whatever the batch."""

from __future__ import annotations

from thunder_core.options.quality import Quality
from thunder_core.recipe import Processor
from thunder_recipes._quantized import QuantizedRecipe


class Int8Dynamic(QuantizedRecipe):
    """Weights and inputs of linear layers in 8 bits, multiplied as integers: for servers, whatever the batch.

    Each row of a weight has a scale, and so has each row of the inputs, which is found as it comes; both are rotated
    before. Inference alone: rounding has no derivative. Add it to a model's recipe: `--recipe hf-llama3 --recipe
    int8-dynamic`.
    """

    requirements = (
        Processor(("avx512_vnni", "avx_vnni", "amx_int8", "i8mm", "asimddp"), otherwise="int8-weight-only"),
    )
    parts = ("products of 8-bit integers by the processor's own instructions",)
    bound = Quality(error=0.05, kl=0.02)
