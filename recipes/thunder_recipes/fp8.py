"""Weights and inputs of linear layers as 8-bit floats with scales for rows: for Hopper and Ada GPUs."""

from __future__ import annotations

from thunder_core.options.quality import Quality
from thunder_core.recipe import Cuda
from thunder_recipes._quantized import QuantizedRecipe


class FP8(QuantizedRecipe):
    """Weights and inputs of linear layers as 8-bit floats with scales for rows: for Hopper and Ada GPUs.

    Elsewhere the same numbers are multiplied as bfloat16, which has all of them. Inference alone: rounding has no
    derivative. Add it to a model's recipe: `--recipe hf-llama3 --recipe fp8`.
    """

    requirements = (Cuda(capability=(8, 9)),)
    parts = ("8-bit float matrix products with the GPU's own instructions",)
    bound = Quality(error=0.2, kl=0.05)
