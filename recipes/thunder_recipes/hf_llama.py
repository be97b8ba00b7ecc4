"""Llama and similar decoders from Hugging Face: as default, but refuses other models."""

from __future__ import annotations

from typing import ClassVar

from thunder_recipes.hf_transformers import HFTransformers


class HFLlama(HFTransformers):
    """Llama and similar decoders from Hugging Face (Mistral, Qwen, Gemma, Phi): as `default`, for these models."""

    families: ClassVar[tuple[str, ...]] = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi3")
    sample = "llama"
