"""Weights of linear layers and the table of tokens in bfloat16, and products of them; all else stays as it is."""

from __future__ import annotations

from thunder_core.options.quality import Quality
from thunder_core.recipe import Processor
from thunder_recipes._quantized import QuantizedRecipe


class BF16(QuantizedRecipe):
    """Weights of linear layers and the table of tokens in bfloat16, and products of them; all else stays as it is.

    For models in float32 on processors with instructions for bfloat16 (AMX, AVX512-BF16).
    """

    requirements = (Processor(("avx512_bf16", "amx_bf16", "bf16")),)
    parts = ("bfloat16 matrix products with the processor's own instructions",)
    bound = Quality(error=0.02, kl=0.005)
