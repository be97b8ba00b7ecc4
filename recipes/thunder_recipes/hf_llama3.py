"""Llama 3 from Hugging Face: as default, refusing others."""

from __future__ import annotations

from thunder_recipes.hf_llama import HFLlama


class HFLlama3(HFLlama):
    """Llama 3 from Hugging Face, 3.1 to 3.3 included: as `default`, for these."""

    families = ("llama",)
    sample = "llama3"
