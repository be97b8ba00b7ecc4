"""Less time between kernels: records the CUDA kernels of another recipe as CUDA graphs."""

from __future__ import annotations

from thunder_core.passes.recipe import Cuda
from thunder_recipes.default import Default


class ReduceOverhead(Default):
    """Less time between kernels: records the CUDA kernels as CUDA graphs, one launch for many kernels.

    This recipe is for small batches, with which the GPU waits for Python. Recorded graphs keep their memory between
    calls. Add this recipe to another recipe: `--recipe hf-llama3 --recipe reduce-overhead`.
    """

    requirements = (Cuda(),)
    parts = ("one launch for many kernels by CUDA graphs",)
    executors = ("sdpa", "packed-linear", "packed-attention", "inductor", "cudagraphs", "torch")
