"""The compiled products of experts for this machine's class of processors."""

from __future__ import annotations

from thunder_executors.inductor.building.kernel_library import KernelLibrary
from thunder_executors.packed_experts.source import ARGUMENTS, NAME, source_of

EXECUTOR_NAME = "packed-experts"
EXPERTS_LIBRARY = KernelLibrary(
    EXECUTOR_NAME, "the matrix products of experts by packed panels", ((NAME, ARGUMENTS, source_of()),)
)
