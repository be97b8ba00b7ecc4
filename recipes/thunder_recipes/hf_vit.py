"""Vision transformers from Hugging Face: like default, but for these models only."""

from __future__ import annotations

from typing import ClassVar

from thunder_recipes.hf_transformers import HFTransformers


class HFVit(HFTransformers):
    """Vision transformers from Hugging Face, image classifiers and encoders: like `default`, for these models.

    `--dynamic batch=1:16` makes one artifact for many batch sizes. `height=` and `width=` can also be ranges, if the
    model interpolates its position embeddings.
    """

    families: ClassVar[tuple[str, ...]] = ("vit", "deit", "beit", "dinov2", "data2vec-vision")
    sample = "vit"
