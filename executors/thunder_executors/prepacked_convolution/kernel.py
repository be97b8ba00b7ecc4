"""The compiled convolutions for this machine's class of processors."""

from __future__ import annotations

from thunder_executors.inductor.building.kernel_library import KernelLibrary
from thunder_executors.inductor.building.machine import processors
from thunder_executors.packed_linear.memory_source import MEMORY
from thunder_executors.packed_linear.source import HEADERS
from thunder_executors.packed_linear.vector_source import ACTIVATIONS, NUMBERS, VECTORS
from thunder_executors.prepacked_convolution.block_source import ARGUMENTS as BLOCK_ARGUMENTS
from thunder_executors.prepacked_convolution.block_source import BLOCK
from thunder_executors.prepacked_convolution.block_source import ENTRY as BLOCK_ENTRY
from thunder_executors.prepacked_convolution.depthwise_source import DEPTHWISE
from thunder_executors.prepacked_convolution.lines_source import LINES
from thunder_executors.prepacked_convolution.padding_source import ARGUMENTS, ENTRY, PADDING
from thunder_executors.prepacked_convolution.pooling_source import ARGUMENTS as POOL_ARGUMENTS
from thunder_executors.prepacked_convolution.pooling_source import ENTRY as POOL_ENTRY
from thunder_executors.prepacked_convolution.pooling_source import POOLING
from thunder_executors.prepacked_convolution.source import CONVOLUTION
from thunder_executors.prepacked_convolution.winograd_source import WINOGRAD

EXECUTOR_NAME = "prepacked-convolution"
CONVOLVE, CONVOLVE_BLOCK, POOL = "convolve", "convolve_block", "pool"  # the functions in the extension module
PANELS = {"x86-64-v4": 32, "x86-64-v3": 16}  # channels that are packed together: two vectors
Functions = tuple[tuple[str, tuple[str, ...], str], ...]


def functions(vectors: str = VECTORS) -> Functions:
    """Return the functions of the library; `vectors` is the source of the vector functions."""
    basis = (HEADERS, NUMBERS, vectors, ACTIVATIONS, MEMORY)
    methods = (CONVOLUTION, WINOGRAD, DEPTHWISE, PADDING, LINES, BLOCK, POOLING)
    common = "".join((*basis, *methods)) + "}  // namespace products\n"
    return (
        (CONVOLVE, ARGUMENTS, common + ENTRY),
        (CONVOLVE_BLOCK, BLOCK_ARGUMENTS, BLOCK_ENTRY),
        (POOL, POOL_ARGUMENTS, POOL_ENTRY),
    )


CONVOLUTIONS = KernelLibrary(EXECUTOR_NAME, "convolutions", functions())


def channels_in_panel() -> int:
    """Return the channels of the result whose weights are packed together; 0 if the processor has no AVX2."""
    return PANELS.get(processors()[0], 0)
