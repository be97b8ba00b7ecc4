"""BERT and similar encoders from Hugging Face: like default, but for these models only."""

from __future__ import annotations

from typing import ClassVar

from thunder_recipes.hf_transformers import HFTransformers


class HFBert(HFTransformers):
    """BERT and similar encoders from Hugging Face, for embeddings, classes and masked words: like `default`."""

    families: ClassVar[tuple[str, ...]] = ("bert", "roberta", "distilbert", "electra", "camembert", "xlm-roberta")
    sample = "bert"
