"""Mixtures of experts from Hugging Face: like default, but for these models only; one program serves every routing."""

from __future__ import annotations

from typing import ClassVar

from thunder_recipes.hf_transformers import HFTransformers


class HFMoe(HFTransformers):
    """Mixtures of experts from Hugging Face: like `default`, for these models.

    The program itself computes the choice of experts, without a guard on it, so one program serves every routing.
    """

    families: ClassVar[tuple[str, ...]] = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe")
    sample = "mixtral"
