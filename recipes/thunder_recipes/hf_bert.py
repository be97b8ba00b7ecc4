"""BERT and its kin from Hugging Face: as default, refusing others."""

from __future__ import annotations

from typing import ClassVar

from thunder_recipes.hf_transformers import HFTransformers


class HFBert(HFTransformers):
    """BERT and its kin from Hugging Face, encoders for embeddings, classes and masked words: as `default`."""

    families: ClassVar[tuple[str, ...]] = ("bert", "roberta", "distilbert", "electra", "camembert", "xlm-roberta")
    sample = "bert"
