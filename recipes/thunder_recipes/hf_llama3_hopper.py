"""Llama 3 from Hugging Face on Hopper GPUs: cuDNN attention, fused Triton kernels and CUDA graphs."""

from __future__ import annotations

from thunder_core.passes.recipe import Cuda, Transform
from thunder_core.passes.transforms.increments import IncrementTogether
from thunder_core.passes.transforms.static_cache import GenerateWithStaticCache
from thunder_recipes.hf_llama3 import HFLlama3


class HFLlama3Hopper(HFLlama3):
    """Llama 3 from Hugging Face on Hopper GPUs (H100, H200): cuDNN attention, fused Triton kernels and CUDA graphs."""

    device = "cuda"
    dtype = "bfloat16"
    seq = 2048
    padded = False  # so that attention needs no mask
    requirements = (Cuda(capability=(9, 0)),)
    parts = (
        "attention by cuDNN's kernels for Hopper; of a token, by Triton kernels that read the filled part of the cache",
        "norms, rotary embedding and SwiGLU by Triton kernels",
        "one product for queries, keys and values of one token, and one for both halves of SwiGLU",
        "one launch for many kernels by CUDA graphs",
        "validation and measurement on a Hopper GPU",
    )
    executors = ("triton", "sdpa", "joined", "nvfuser", "inductor", "cudagraphs", "torch")

    def setup_transforms(self) -> tuple[Transform, ...]:
        """Return the transforms, including a static cache: its sizes are constant, so one graph serves all tokens."""
        return (*super().setup_transforms(), GenerateWithStaticCache(), IncrementTogether())
