"""Llama 3 from Hugging Face: like default, but for these models only."""

from __future__ import annotations

from thunder_recipes.hf_llama import HFLlama


class HFLlama3(HFLlama):
    """Llama 3 from Hugging Face, including 3.1 to 3.3: like `default`, for these models."""

    families = ("llama",)
    sample = "llama3"
