"""Mixtures of experts from Hugging Face: as default, with one program for every routing; refuses other models."""

from __future__ import annotations

from typing import ClassVar

from thunder_recipes.hf_transformers import HFTransformers


class HFMoe(HFTransformers):
    """Mixtures of experts from Hugging Face: as `default`, for these models.

    The choice of experts is computed in the program and never guarded, so one program serves every routing.
    """

    families: ClassVar[tuple[str, ...]] = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe")
    sample = "mixtral"
