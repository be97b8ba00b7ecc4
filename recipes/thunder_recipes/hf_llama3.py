"""Llama 3 from Hugging Face: as default, but refuses other models."""

from __future__ import annotations

from thunder_recipes.hf_llama import HFLlama


class HFLlama3(HFLlama):
    """Llama 3 from Hugging Face, including 3.1 to 3.3: as `default`, for these models."""

    families = ("llama",)
    sample = "llama3"
