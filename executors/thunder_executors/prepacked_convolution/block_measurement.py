"""The times of a block in one call and of its convolutions in separate calls, measured on this machine and cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from thunder_core.backend.cache import Key
from thunder_core.backend.claiming.kernel_times import KernelTimes, cached_times, key_on_processor
from thunder_core.backend.claiming.tuning import TuningBudget
from thunder_core.foundation.time_format import format_time
from thunder_core.tracing.ir.sizes import hint_of
from thunder_executors.prepacked_convolution.block import Block
from thunder_executors.prepacked_convolution.kernel import (
    CONVOLUTIONS,
    CONVOLVE,
    CONVOLVE_BLOCK,
    EXECUTOR_NAME,
    channels_in_panel,
)
from thunder_executors.prepacked_convolution.measurement import (
    SOURCE,
    Call,
    by_kernel,
    by_onednn,
    by_pytorch,
    compare_with_library,
    seconds_for,
    tensor_like,
    title_of,
    weight_like,
)
from thunder_executors.prepacked_convolution.region import ONEDNN, sizes_of_block
from thunder_executors.prepacked_convolution.weights import packed_weights


@dataclass(frozen=True)
class BlockTimes(KernelTimes):
    """The seconds of a block in one call, and of its convolutions in separate calls."""

    title: str = ""

    def __str__(self) -> str:
        together = f"in one call {format_time(self.kernel)}{self.disagreement}"
        return f"{self.title}: {together}, in separate calls {format_time(self.library)}"


def block_times(block: Block, methods: Sequence[str], budget: TuningBudget) -> BlockTimes | None:
    """Return the times of a block, from the cache or measured; None if the remaining budget is too small.

    `methods` has the name of the method of each separate convolution, or an empty string for PyTorch's.
    """
    seconds = sum(seconds_for(chain, 1) for chain in block.chains)
    return cached_times(
        BlockTimes,
        key_of(block, methods),
        block_title(block),
        budget,
        seconds,
        lambda: partial(measure, block, methods),
    )


def block_title(block: Block) -> str:
    """Return a block as text: `1 x 24 x 56 x 56 to 144, 144 and 24, kernel 3 x 3, stride 1 x 1, ...`."""
    sizes = " x ".join(str(hint_of(size)) for size in block.x.shape)
    channels = [str(chain.weight.shape[0]) for chain in block.chains]
    kernel, stride = (" x ".join(map(str, pair)) for pair in (block.depthwise.weight.shape[2:], block.depthwise.stride))
    return f"{sizes} to {', '.join(channels[:-1])} and {channels[-1]}, kernel {kernel}, stride {stride}"


def key_of(block: Block, methods: Sequence[str]) -> Key:
    """Return the key of a measurement of a block, and of its convolutions by methods."""
    region, source = "; ".join(map(title_of, block.chains)), f"{SOURCE} {CONVOLUTIONS.digest}"
    words = " ".join(name or "PyTorch" for name in methods)
    return key_on_processor(f"{EXECUTOR_NAME} times of blocks", region, source, methods=words)


def measure(block: Block, methods: Sequence[str]) -> BlockTimes:
    """Time a block by one call, and by a call for each convolution."""
    kernel, whole = (CONVOLUTIONS.function(name) for name in (CONVOLVE, CONVOLVE_BLOCK))
    x, result = tensor_like(block.x), tensor_like(block.result)
    weights = [weight_like(chain) for chain in block.chains]
    addend = tensor_like(block.addend) if block.addend is not None else None
    results = [tensor_like(chain.result) for chain in block.chains]

    def separately() -> torch.Tensor:
        value = x
        for chain, method, weight, memory in zip(block.chains, methods, weights, results, strict=True):
            added = addend if chain.addend is not None else None
            if method == "":
                value = by_pytorch(chain, value, added, weight)
            elif method == ONEDNN:
                value = by_onednn(chain, value, added, weight)
            else:
                value = by_kernel(chain, value, added, weight, memory, kernel, method)
        return value

    calls: dict[str, Call] = {"together": partial(by_block, block, x, addend, weights, result, whole), "": separately}
    agrees, seconds = compare_with_library(calls, "together", x)
    return BlockTimes(seconds["together"], seconds[""], agrees, block_title(block))


def by_block(
    block: Block,
    x: torch.Tensor,
    addend: torch.Tensor | None,
    weights: Sequence[torch.Tensor],
    result: torch.Tensor,
    kernel: Callable[..., Any],
) -> torch.Tensor:
    """Return the result of a block by one call; the next call overwrites the result."""
    by_chain = dict(zip(map(id, block.chains), weights, strict=True))
    operands: list[torch.Tensor] = []
    for chain, method in block.stages:
        packed = x
        if chain is not None:
            packed = packed_weights((by_chain[id(chain)], None), 0.0, method, channels_in_panel()).weight
        operands += [packed, x]
    sizes = sizes_of_block(block, (*x.shape, *x.stride()), result.shape)
    kernel(x, *operands, x if addend is None else addend, result, *sizes, 0, 0, 0, int(addend is not None))
    return result
