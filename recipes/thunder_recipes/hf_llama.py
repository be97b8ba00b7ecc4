"""Llama and similar decoders from Hugging Face: like default, but for these models only."""

from __future__ import annotations

from typing import ClassVar

from thunder_recipes.hf_transformers import HFTransformers


class HFLlama(HFTransformers):
    """Llama and similar decoders from Hugging Face (Mistral, Qwen, Gemma, Phi): like `default`, for these models."""

    families: ClassVar[tuple[str, ...]] = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi3")
    sample = "llama"
