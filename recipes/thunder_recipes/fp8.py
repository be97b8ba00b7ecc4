"""The weights and inputs of linear layers as 8-bit floats with a scale for each row: for Hopper and Ada GPUs."""

from __future__ import annotations

from thunder_core.foundation.options.quality import Quality
from thunder_core.passes.recipe import Cuda
from thunder_recipes._quantized import QuantizedRecipe


class FP8(QuantizedRecipe):
    """The weights and inputs of linear layers as 8-bit floats with a scale for each row: for Hopper and Ada GPUs.

    On other devices, the same numbers are multiplied in bfloat16, which represents 8-bit floats exactly. This recipe is
    for inference only, because rounding has no derivative. Add it to a model's recipe:
    `--recipe hf-llama3 --recipe fp8`.
    """

    requirements = (Cuda(capability=(8, 9)),)
    parts = ("8-bit float matrix products with the GPU's own instructions",)
    bound = Quality(error=0.2, kl=0.05)
