"""Less time between kernels: what runs on CUDA is recorded as CUDA graphs, beside what any other recipe does."""

from __future__ import annotations

from thunder_core.recipe import Cuda
from thunder_recipes.default import Default


class ReduceOverhead(Default):
    """Less time between kernels: what runs on CUDA is recorded as CUDA graphs, one launch for many kernels.

    For small batches, where the GPU waits for Python. Add it to another recipe: `--recipe hf-llama3 --recipe
    reduce-overhead`. What is recorded keeps its memory between calls.
    """

    requirements = (Cuda(),)
    parts = ("one launch for many kernels by CUDA graphs",)
    executors = ("sdpa", "inductor", "cudagraphs", "torch")
