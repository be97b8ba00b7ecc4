"""Vision transformers from Hugging Face: as default, refusing others."""

from __future__ import annotations

from typing import ClassVar

from thunder_recipes.hf_transformers import HFTransformers


class HFVit(HFTransformers):
    """Vision transformers from Hugging Face: image classifiers and encoders, as `default`, for these.

    `--dynamic batch=1:16` and, where the model interpolates its position embeddings, `height=` and `width=` make one
    artifact for many sizes.
    """

    families: ClassVar[tuple[str, ...]] = ("vit", "deit", "beit", "dinov2", "data2vec-vision")
    sample = "vit"
