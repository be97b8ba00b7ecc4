"""The compiled convolutions for this machine's class of processors."""

from __future__ import annotations

from thunder_executors.inductor.building.kernel_library import KernelLibrary
from thunder_executors.inductor.building.machine import processors
from thunder_executors.packed_linear.memory_source import MEMORY
from thunder_executors.packed_linear.source import HEADERS
from thunder_executors.packed_linear.vector_source import ACTIVATIONS, NUMBERS, VECTORS
from thunder_executors.prepacked_convolution.depthwise_source import DEPTHWISE
from thunder_executors.prepacked_convolution.padding_source import ARGUMENTS, ENTRY, PADDING
from thunder_executors.prepacked_convolution.source import CONVOLUTION
from thunder_executors.prepacked_convolution.winograd_source import WINOGRAD

EXECUTOR_NAME = "prepacked-convolution"
NAME = "convolve"  # the function in the extension module
PANELS = {"x86-64-v4": 32, "x86-64-v3": 16}  # channels that are packed together: two vectors


def source(vectors: str = VECTORS) -> str:
    """Return the C++ source; `vectors` is the source of the vector functions."""
    parts = (HEADERS, NUMBERS, vectors, ACTIVATIONS, MEMORY, CONVOLUTION, WINOGRAD, DEPTHWISE, PADDING)
    return "".join(parts) + "}  // namespace products\n" + ENTRY


CONVOLUTIONS = KernelLibrary(EXECUTOR_NAME, "convolutions", NAME, ARGUMENTS, source())


def channels_in_panel() -> int:
    """Return the channels of the result whose weights are packed together; 0 if the processor has no AVX2."""
    return PANELS.get(processors()[0], 0)
