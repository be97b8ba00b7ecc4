"""T5 and similar models from Hugging Face, encoder and decoder: like default, but for these models only."""

from __future__ import annotations

from typing import ClassVar

from thunder_recipes.hf_transformers import HFTransformers


class HfT5(HFTransformers):
    """T5 and similar models from Hugging Face, encoder and decoder: like `default`, for these models.

    The lengths of the caches of decoder tokens and of encoder tokens are symbolic, so `generate` needs one program for
    prompts and one for later tokens.
    """

    families: ClassVar[tuple[str, ...]] = ("t5", "mt5", "umt5")
    sample = "t5"
