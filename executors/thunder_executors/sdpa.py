"""Scaled dot product attention on CUDA: the fastest backend of PyTorch that takes the inputs, in a fixed order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from thunder_core.ir.proxy import TensorProxy
from thunder_core.ir.symbol import BoundSymbol, Symbol
from thunder_core.lower.executor import Executor
from thunder_core.requirement import Cuda

ATTENTION = "torch.nn.functional.scaled_dot_product_attention"

# On Hopper cuDNN's kernels come first; PyTorch by itself prefers FlashAttention 2, written for Ampere.
PRIORITY = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)


def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
    """PyTorch's scaled_dot_product_attention, with the backends tried in the order of `PRIORITY`."""
    with sdpa_kernel(list(PRIORITY), set_priority=True):
        return scaled_dot_product_attention(*args, **kwargs)


OURS = Symbol("thunder_executors.sdpa.attention", attention)


@dataclass(frozen=True)
class ScaledDotProductAttention(Executor):
    """Claims attention on CUDA tensors."""

    name: str = "sdpa"

    @property
    def claims(self) -> str:
        """Attention on CUDA."""
        return f"{ATTENTION} on CUDA: cuDNN, flash, memory-efficient or math, whichever takes the inputs first"

    def missing(self) -> str | None:
        """A GPU, where there is none."""
        return Cuda().missing()

    def missing_for(self, target: str) -> str | None:  # noqa: ARG002
        """Nothing: the kernels are PyTorch's, where the program will run."""
        return None

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:
        """The line with the backends in our order."""
        on_cuda = all(p.device.type == "cuda" for p in bsym.inputs if isinstance(p, TensorProxy))
        if bsym.symbol.name != ATTENTION or not on_cuda:
            return None
        return replace(bsym, symbol=OURS, executor=self.name)


EXECUTOR = ScaledDotProductAttention()
