"""The compiled matrix products for this machine's class of processors."""

from __future__ import annotations

from functools import cache

from thunder_executors.inductor.building.kernel_library import KernelLibrary
from thunder_executors.inductor.building.machine import processors
from thunder_executors.packed_linear.product_kinds import ProductKind
from thunder_executors.packed_linear.source import ARGUMENTS, NAME, PACK, PACK_ARGUMENTS, PACK_ENTRY, source_of

EXECUTOR_NAME, PREPACKED_NAME = "packed-linear", "prepacked-linear"
PROCESSORS = ("x86-64-v3", "x86-64-v4")  # with AVX2 and FMA, or AVX-512


def missing_processor() -> str | None:
    """Return the reason why this machine's processor does not run the kernel; None if it does."""
    return None if processors()[0] in PROCESSORS else "the kernel needs a processor with AVX2 and FMA"


@cache
def library_of(kind: ProductKind) -> KernelLibrary:
    """Return the library of a kind of products; if the kind is prepacked, the library also packs weights."""
    pack = [(PACK, PACK_ARGUMENTS, PACK_ENTRY)] if kind.prepacked else []
    title = f"the matrix product of packed panels {kind.description}".strip()
    return KernelLibrary(EXECUTOR_NAME, title, ((NAME, ARGUMENTS, source_of(kind.type)), *pack))
