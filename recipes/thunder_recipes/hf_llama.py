"""Llama and the decoders built like it, from Hugging Face: as default, refusing others."""

from __future__ import annotations

from typing import ClassVar

from thunder_recipes.hf_transformers import HFTransformers


class HFLlama(HFTransformers):
    """Llama and the decoders built like it, from Hugging Face (Mistral, Qwen, Gemma, Phi): as `default`, for these."""

    families: ClassVar[tuple[str, ...]] = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi3")
    sample = "llama"
