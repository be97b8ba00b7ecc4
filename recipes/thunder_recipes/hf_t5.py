"""T5 and similar models from Hugging Face, encoder and decoder: like default, but for these models only."""

from __future__ import annotations

from typing import ClassVar

from thunder_recipes.hf_transformers import HFTransformers


class HfT5(HFTransformers):
    """T5 and similar models from Hugging Face, encoder and decoder: like `default`, for these models.

    The lengths of the caches of decoder tokens and of encoder tokens are symbolic, so `generate` needs one program for
    prompts and one for later tokens.

    No other change of these models was measured to be faster on a CPU. The relative positions take less than 1% of a
    call with 128 tokens, and masks that all layers of the decoder share took 1.01 of the time. To leave out padding
    takes 0.66 to 0.68 of eager's time, and `default` 0.96 to 0.97, but the model returns the encoder's hidden states of
    padding.
    """

    families: ClassVar[tuple[str, ...]] = ("t5", "mt5", "umt5")
    sample = "t5"
