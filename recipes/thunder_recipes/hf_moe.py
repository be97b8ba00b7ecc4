"""Mixtures of experts from Hugging Face: one kernel multiplies the tokens of all experts on a CPU."""

from __future__ import annotations

from typing import ClassVar

from thunder_recipes.hf_transformers import HFTransformers


class HFMoe(HFTransformers):
    """Mixtures of experts from Hugging Face: like `default`, with a kernel for the products of all experts on a CPU.

    The program itself computes the choice of experts, without a guard on it, so one program serves every routing.

    On an Intel Xeon with one thread, a small Mixtral takes 0.69 of eager's time for 128 tokens, and 0.88 without the
    kernel (`--without packed-experts`). For one token it takes 0.66, and 0.72 without the kernel.
    """

    families: ClassVar[tuple[str, ...]] = ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe")
    executors: ClassVar[tuple[str, ...]] = ("sdpa", "packed-experts", *HFTransformers.executors[1:])
    sample = "mixtral"
