"""The weights and inputs of linear layers in 8 bits, multiplied as integers: for servers, at any batch size."""

from __future__ import annotations

from thunder_core.foundation.options.quality import Quality
from thunder_core.passes.recipe import Processor
from thunder_recipes._quantized import QuantizedRecipe


class Int8Dynamic(QuantizedRecipe):
    """The weights and inputs of linear layers in 8 bits, multiplied as integers: for servers, at any batch size.

    Each row of a weight and each row of the inputs has a scale; scales of inputs are computed at each call. Weights and
    inputs are rotated before rounding. This recipe is for inference only, because rounding has no derivative. Add it to
    a model's recipe: `--recipe hf-llama3 --recipe int8-dynamic`.
    """

    requirements = (
        Processor(("avx512_vnni", "avx_vnni", "avx2", "amx_int8", "i8mm", "asimddp"), otherwise="int8-weight-only"),
    )
    parts = ("8-bit integer matrix products with the processor's own instructions",)
    bound = Quality(error=0.05, kl=0.02)
