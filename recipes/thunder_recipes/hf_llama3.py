"""Llama 3 from Hugging Face: on a CPU, the last layer computes only the last token of a prompt."""

from __future__ import annotations

from thunder_recipes.hf_llama import HFLlama


class HFLlama3(HFLlama):
    """Llama 3 from Hugging Face, including 3.1 to 3.3: the recipe `hf-llama`, for these models only."""

    families = ("llama",)
    sample = "llama3"
