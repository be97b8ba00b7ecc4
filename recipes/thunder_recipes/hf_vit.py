"""Vision transformers from Hugging Face: like default, but for these models only."""

from __future__ import annotations

from typing import ClassVar

from thunder_recipes.hf_transformers import HFTransformers


class HFVit(HFTransformers):
    """Vision transformers from Hugging Face, image classifiers and encoders: like `default`, for these models.

    On a CPU, a classifier reads the first row of the last layer. The last layer then computes queries, attention and
    linear layers for this row alone, and keys and values for all rows.

    On an AMD EPYC with one thread, a classifier with 12 layers takes 0.80 to 0.86 of eager's time, and 0.89 to 0.92
    `--without selected_rows`.

    `--dynamic batch=1:16` makes one artifact for many batch sizes. `height=` and `width=` can also be ranges, if the
    model interpolates its position embeddings.
    """

    families: ClassVar[tuple[str, ...]] = ("vit", "deit", "beit", "dinov2", "data2vec-vision")
    sample = "vit"
