"""The weights of linear layers and the token embeddings in bfloat16, with bfloat16 products."""

from __future__ import annotations

from thunder_core.foundation.options.quality import Quality
from thunder_core.passes.recipe import Processor
from thunder_recipes._quantized import QuantizedRecipe


class BF16(QuantizedRecipe):
    """The weights of linear layers and the token embeddings in bfloat16, with bfloat16 products; the rest is unchanged.

    This recipe is for models in float32 on processors with bfloat16 instructions (AMX, AVX512-BF16). A model in
    training mode keeps its float weights: they are trained, and rounded to bfloat16 at each call.
    """

    requirements = (Processor(("avx512_bf16", "amx_bf16", "bf16")),)
    parts = ("bfloat16 matrix products with the processor's own instructions",)
    bound = Quality(error=0.02, kl=0.005)
