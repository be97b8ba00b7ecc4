"""The compiled attention for this machine's class of processors."""

from __future__ import annotations

from thunder_executors.inductor.building.kernel_library import KernelLibrary
from thunder_executors.packed_attention.source import ARGUMENTS, NAME, source_of

EXECUTOR_NAME = "packed-attention"
ATTENTION_LIBRARY = KernelLibrary(
    EXECUTOR_NAME, "attention to packed panels of queries", ((NAME, ARGUMENTS, source_of()),)
)
