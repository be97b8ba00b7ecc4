"""Inference with constant weights on the CPU: weights are packed once, for the matrix product of the processor."""

from __future__ import annotations

from thunder_recipes.default import Default


class Freeze(Default):
    """Inference with constant weights on the CPU: weights are packed once, for the matrix product of the processor.

    Packed weights take memory next to the weights. Writes are noticed by the version counters of weights, not those
    through `.data` or NumPy. Add this recipe to another one: `--recipe hf-bert --recipe freeze`.
    """

    parts = ("weights packed once",)
    executors = (
        "sdpa",
        "prepacked-linear",
        "packed-linear",
        "packed-attention",
        "prepacked-convolution",
        "inductor",
        "torch",
    )
