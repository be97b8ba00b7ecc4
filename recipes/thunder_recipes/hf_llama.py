"""Llama and similar decoders from Hugging Face: like default, but for these models only."""

from __future__ import annotations

from typing import ClassVar

from thunder_recipes.hf_transformers import HFTransformers


class HFLlama(HFTransformers):
    """Llama and similar decoders from Hugging Face (Mistral, Qwen, Gemma, Phi): like `default`, for these models.

    On a CPU, a prompt that only asks for the next token (`logits_to_keep=1`, as in `generate`) reads the last token of
    the last layer. The last layer then computes queries, attention and linear layers for this token alone, and keys and
    values for all tokens.

    On an AMD EPYC with one thread, a Llama with 8 layers takes 0.66 to 0.71 of eager's time for a prompt of 128 tokens,
    and 0.77 to 0.82 `--without selected_rows`.
    """

    families: ClassVar[tuple[str, ...]] = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi3")
    sample = "llama"
