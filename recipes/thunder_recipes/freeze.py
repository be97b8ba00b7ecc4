"""Inference with constant weights on the CPU: weights are packed once, for the kernels of the processor."""

from __future__ import annotations

from thunder_core.passes.transforms.channels_last import ChannelsLast
from thunder_core.tracing.extension.transform import Transform
from thunder_recipes.default import Default


class Freeze(Default):
    """Inference with constant weights on the CPU: weights are packed once, for the kernels of the processor.

    Packed weights take memory in addition to the weights. Writes to weights are detected by their version counters,
    except writes through `.data` or NumPy. Add this recipe to another recipe: `--recipe hf-bert --recipe freeze`.
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

    def setup_transforms(self) -> tuple[Transform, ...]:
        """Return the transforms of the recipe `default`, and `ChannelsLast`."""
        return (*super().setup_transforms(), ChannelsLast())
